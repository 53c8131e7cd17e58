"""The option `veto`: decisions by their keys, left out one by one, by maker, or all; the results stay right."""

import functools
from pathlib import Path

import pytest
import torch

from litz import report
from litz.driver.plugin_options import MAKERS
from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.errors import InvalidOptionError
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz_plugins import VETOED, Gate, Pass, PassContext, Preferences, Vetoes, hookimpl
from litz_plugins.manager import make_plugins
from litz_plugins.vetoes import key_of, parts_of, read_preferences, read_vetoes
from support.retarget import to_cuda


@pytest.mark.parametrize("parts", [("", "fuse", ""), ("", "fuse", "a+b"), ("g", "fuse", ""), ("g", "fuse", "a: b/c")])
def test_a_key_is_read_as_it_was_written(parts):
    assert parts_of(key_of(*parts)) == parts


@pytest.mark.parametrize(
    ("key", "forbidden"),
    [("*", True), ("fuse", True), ("fuse/a", True), ("g:fuse", True), ("g:fuse/a", True)]
    + [("fuse/b", False), ("h:fuse", False), ("h:fuse/a", False), ("lower", False), ("", False)],
)
def test_what_a_veto_names(key, forbidden):
    assert Vetoes(frozenset({key})).forbid("g", "fuse", "a") == forbidden


def test_vetoes_from_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("g:fuse/a\n\n lower \n")
    assert read_vetoes(["choose", f"@{file}"]).keys == {"choose", "g:fuse/a", "lower"}
    with pytest.raises(OSError, match="nothing"):
        read_vetoes([f"@{tmp_path / 'nothing'}"])


def test_a_gate_remembers():
    gate = Gate("g", Vetoes(frozenset({"fuse/b"})))
    assert gate.take("fuse", "a") and not gate.take("fuse", "b") and not gate.forbids("lower")
    assert list(gate.taken) == ["g:fuse/a"] and list(gate.left_out) == ["g:fuse/b"]


def test_a_vetoed_pass_does_not_run():
    class Plugin:
        @hookimpl
        def litz_register_passes(self, options):
            return [Pass("double", "program", lambda noun, context: noun * 2 if noun else noun)]

    plugins = make_plugins(extra=[("p", Plugin())], entry_points=[])
    notes = []
    gate = Gate("g", Vetoes(frozenset({"double"})))
    assert plugins.run_passes("program", 3, {}, note=notes.append, gate=gate) == 3
    assert [(note.chosen, note.reason, note.plugin) for note in notes] == [("not run", VETOED, "p")]
    taking = Gate("g")
    assert plugins.run_passes("program", 3, {}, gate=taking) == 6 and list(taking.taken) == ["g:double"]
    idle = Gate("g")
    assert plugins.run_passes("program", 0, {}, gate=idle) == 0 and not idle.taken  # it changed nothing


def test_what_a_pass_asks_is_its_key():
    notes = []
    context = PassContext({}, pass_name="harm", note=notes.append, gate=Gate("g", Vetoes(frozenset({"harm/b"}))))
    assert context.allows("a") and not context.allows("b")
    context.record("node a", "changed", "why", about="a")
    assert notes[0].key == "g:harm/a" in context.gate.taken


# -------------------------------------------------------------------------------------------------------- in a compile


def f(x, w, b):
    h = torch.softmax(x @ w + b, -1)
    return torch.nn.functional.gelu(h) * x.sum(0), h.var(1), x.t() + 1


def compiled(veto=(), **options):
    """(results, the report) of `f` on the CPU, in debug mode: each stage's result is verified."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = torch.randn(32, 24), torch.randn(24, 24), torch.randn(24)
    with report.collect() as reports:
        results = torch.compile(f, backend="litz", options={"veto": veto, "debug": True, **options})(*inputs)
    for mine, theirs in zip(results, f(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)
    return results, reports[0]


@pytest.fixture(scope="module")
def plain():
    return compiled()[1]


def test_decisions_on_record_have_the_keys_that_were_taken(plain):
    keys = {decision.key for decision in plain.decisions if decision.key}
    makers = {parts_of(key)[1] for key in plain.taken}
    assert {"lower", "fuse", "inline_pointwise", "plan_memory"} <= makers
    fused = {decision.key for decision in plain.decisions if decision.chosen == "fused"}
    assert fused and fused <= set(plain.taken) and fused <= keys
    assert plain.to_json()["taken"] == list(plain.taken) and plain.to_json()["left_out"] == []


def test_keys_are_the_same_in_every_compile(plain):
    assert compiled()[1].taken == plain.taken


@pytest.mark.parametrize("veto", [("*",), *((maker,) for maker in MAKERS), ("inline_pointwise", "fuse")])
def test_without_any_decisions_of_some_results_are_right(veto, plain):
    _, made = compiled(veto)
    left = [key for key in made.taken if veto == ("*",) or parts_of(key)[1] in veto]
    assert not left
    if veto == ("*",):
        assert not made.taken and made.left_out


def test_vetoed_lowering_is_a_library_call(plain):
    _, made = compiled(("lower",))
    assert sum(made.externs.values()) > sum(plain.externs.values())
    assert any(d.reason == VETOED and d.chosen == "the library call" for d in made.decisions)


def test_one_fusion_is_left_out_alone(plain):
    key = next(d.key for d in plain.decisions if d.chosen == "fused")
    _, made = compiled((key,))
    assert key in made.left_out and key not in made.taken
    assert any(d.key == key and d.chosen == "kept apart" and d.reason == VETOED for d in made.decisions)
    assert sum(parts_of(k)[1] == "fuse" for k in made.taken) >= 1  # the others are taken


def test_one_inlining_is_left_out_alone(plain):
    key = next(k for k in plain.taken if parts_of(k)[1] == "inline_pointwise" and parts_of(k)[2])
    _, made = compiled((key,))
    assert any(d.key == key and d.chosen == "kept" and d.reason == VETOED for d in made.decisions)


def test_vetoes_are_no_part_of_a_kernel(plain):
    """Without a veto that changes them, kernels come from the cache."""
    _, made = compiled(("choose",))
    assert made.kernel_sources == plain.kernel_sources and made.cache_hits == plain.kernels_after


def test_a_mistyped_maker_is_an_error():
    with pytest.raises(InvalidOptionError, match="nobody who decides is called 'fusee' \\(did you mean 'fuse'"):
        make_compiler(options={"veto": ["graph0:fusee/a"]})


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(InvalidOptionError, match=r"nothing'(.|\n)*files that can be read"):
        make_compiler(options={"veto": [f"@{tmp_path}/nothing"]})


# --------------------------------------------------------------------------------------------- what only CUDA graphs do


def cuda_keys(veto=(), prefer=(), graphs=()):
    """(the schedules, the keys taken, those left out, the graphs) of a layer's forward and backward, for a GPU that is
    not here. graphs: what was captured before, of which the capture decides nothing of what is asked for."""
    log = Log()
    compiler = make_compiler(options={"veto": veto, "prefer": prefer, "debug": True})

    def run(backend):
        torch._dynamo.reset()
        torch.manual_seed(0)
        pairs = [[torch.randn(*size, requires_grad=True) for size in ((4096, n), (n,))] for n in (96, 160, 224)]
        small = torch.randn(16, 8), torch.randn(24, 8)

        def layers(pairs, small):
            normed = [torch.nn.functional.rms_norm(x, w.shape, w).cos().sum() for x, w in pairs]
            return sum(normed), [each.sum(1) for each in small]

        torch.compile(layers, backend=backend, dynamic=False)(pairs, small)[0].backward()

    schedules, captured = [], []

    def keep(graph):
        captured.append(graph)
        prepared = prepare_graph(to_cuda(graph), compiler, log)
        schedules.append(schedule_prepared(prepared, compiler, log))
        return lambda args: torch.fx.Interpreter(graph.module).run(*args, enable_io_processing=False)

    for graph in graphs:
        keep(graph)
    if not graphs:
        run(functools.partial(capture, compile_graph=keep, compiler=compiler))
    return schedules, list(log.gate.taken), list(log.gate.left_out), captured


@pytest.fixture(scope="module")
def on_cuda():
    return cuda_keys()


@pytest.mark.ci_cases("split_reductions")
@pytest.mark.parametrize("maker", ["split_reductions", "finish_in_one_launch", "run_beside"])
def test_each_of_a_schedule_passes_decisions(maker, on_cuda):
    schedules, taken, _, graphs = on_cuda
    mine = [key for key in taken if parts_of(key)[1] == maker and parts_of(key)[2]]
    assert mine
    made, now, left_out, _ = cuda_keys((mine[-1],), graphs=graphs)
    assert left_out == [mine[-1]] and mine[-1] not in now
    assert list(map(str, made)) != list(map(str, schedules))


def test_nothing_at_all_is_decided_for_a_gpu(on_cuda):
    made, taken, left_out, _ = cuda_keys(("*",))
    assert not taken and "lower" in {parts_of(key)[1] for key in left_out}
    externs = lambda schedules: sum(len(list(schedule.externs)) for schedule in schedules)
    assert externs(made) > externs(on_cuda[0])


# ---------------------------------------------------------------------------------------------------------- preferences


def test_a_preferred_way_goes_before_the_estimates_and_a_veto_before_both():
    ways = (("whole", 3.0), ("split", 2.0), ("finer", 2.5))
    gate = Gate(
        "g", Vetoes(frozenset({"s/c"})), preferences=Preferences({"s/b": "finer", "g:s/c": "finer", "s/d": "odd"})
    )
    assert gate.choose("s", "a", ways, "split", "whole") == ("split", "")
    assert gate.choose("s", "b", ways, "split", "whole") == ("finer", Preferences().why)
    assert gate.choose("s", "c", ways, "split", "whole") == ("whole", VETOED)
    assert gate.choose("s", "d", ways, "split", "whole") == ("split", "")  # there is no such way
    assert list(gate.taken) == ["g:s/a", "g:s/b", "g:s/d"] and list(gate.left_out) == ["g:s/c"]
    assert {key: found.chosen for key, found in gate.weighed.items()} == {
        "g:s/a": "split", "g:s/b": "finer", "g:s/c": "whole", "g:s/d": "split",
    }  # fmt: skip
    found = gate.weighed["g:s/a"]
    assert found.gain("whole") == -1.0 and found.margin == 0.25


def test_a_decision_that_does_not_pay_is_on_record_too():
    gate = Gate("g", preferences=Preferences({"fuse/b": "yes", "fuse/c": "no"}))
    assert gate.weigh("fuse", "a", False, 2.0, 3.0) == (False, "") and not gate.taken
    assert gate.weigh("fuse", "b", False, 2.0, 3.0)[0] and not gate.weigh("fuse", "c", True, 3.0, 2.0)[0]
    assert list(gate.taken) == ["g:fuse/b"] and [w.gain("yes") for w in gate.weighed.values()] == [-1.0, 0.0, 1.0]


def test_a_key_that_meets_nothing_is_on_record_with_the_nearest(plain):
    key, found = next((key, found) for key, found in plain.weighed.items() if "=" not in key and found.chosen != "no")
    other = key[:-1] + "_"
    options = {"veto": (other, "graph9:fuse/x"), "prefer": (f"{other}=yes", f"{key}=nonsense", f"{key}={found.chosen}")}
    _, made = compiled(**options)
    rows = {d.subject: d.reason for d in made.decisions if d.chosen == "met nothing"}
    assert set(rows) == {f"veto {other}", f"prefer {other}=yes"}, "the last preference of a key counts"
    assert all("the nearest key: graph0" in reason for reason in rows.values()), rows
    _, made = compiled(prefer=(f"{key}=nonsense",))
    (reason,) = (d.reason for d in made.decisions if d.chosen == "met nothing")
    assert reason.startswith(f"{key} has no way 'nonsense'; there are: ") and found.chosen in reason


@pytest.mark.parametrize("text", ["fuse/a", "=yes", "fuse/a="])
def test_a_preference_that_is_none(text):
    with pytest.raises(ValueError, match="KEY=WAY"):
        read_preferences([text])
    with pytest.raises(InvalidOptionError, match="KEY=WAY"):
        make_compiler(options={"prefer": [text]})


def test_a_preference_of_nobody_who_decides():
    with pytest.raises(InvalidOptionError, match="nobody who decides is called 'fusee'"):
        make_compiler(options={"prefer": ["fusee/a=yes"]})


def test_fusions_and_values_are_as_preferred(plain):
    """Each decision of the graph the other way, alone: on record with its reason, and the results are right."""
    for key, found in plain.weighed.items():
        for way, us in found.ways:
            if way != found.chosen and us is not None and "=" not in key:
                _, made = compiled(prefer=(f"{key}={way}",))
                assert made.weighed[key].chosen == way


@pytest.mark.parametrize("maker", ["split_reductions", "run_beside", "finish_in_one_launch", "fuse"])
def test_ways_of_a_gpus_decisions(maker, on_cuda):
    schedules, taken, _, graphs = on_cuda
    mine = [key for key in taken if parts_of(key)[1] == maker and parts_of(key)[2]]
    ways = {"split_reductions": ("whole", "half as many pieces", "twice as many pieces")}.get(maker, ("no",))
    for way in ways:
        made, *_ = cuda_keys(prefer=(f"{mine[-1]}={way}",), graphs=graphs)
        assert list(map(str, made)) != list(map(str, schedules)), way
