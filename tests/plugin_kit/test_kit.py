"""The conformance kit finds what is wrong with plugins, names it, and finds nothing wrong with good ones."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from functorch.compile import default_partition

from litz.driver.builtin import builtin_plugins
from litz.ir import Extern, Loop
from litz.ir.build import call, const
from litz.ir.node import with_args
from litz.ir.transform import map_stores
from litz_plugins import Choice, Entry, EntryFacts, Estimate, Exporter, Pass, TemplateSpec, hookimpl, make_plugins
from litz_plugins.testing import check_conformance
from litz_testing.plugin_kit import Conformance, ConformanceError
from litz_testing.plugin_kit.examples import Example
from litz_testing.plugin_kit.kit import _ops
from litz_testing.plugin_kit.op_samples import VARIANTS, samples_of

pytest_plugins = ["pytester"]
aten = torch.ops.aten
FEW = VARIANTS[:3]


def plugin(**hooks: Any) -> Any:
    """A module with hooks: the graph cache keeps graphs of such."""
    module = ModuleType("mine")
    module.__file__ = __file__
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


def faults(what: object, **how: Any) -> tuple[ConformanceError, Conformance]:
    with pytest.raises(ConformanceError) as caught:
        check_conformance(what, name="mine", **how)
    return caught.value, caught.value.conformance


def test_what_runs_in_place_of_entries_is_called_again() -> None:
    """With results that are held, and with other sizes; the first call alone tells nothing."""
    ran: list[str] = []

    def counted(entry: Entry, facts: EntryFacts) -> Entry:
        def run(args: list[Any]) -> tuple[Any, ...]:
            ran.append(facts.graph)
            return entry(args)

        return run

    def same_memory(entry: Entry) -> Entry:
        memory: dict[Any, tuple[Any, ...]] = {}

        def run(args: list[Any]) -> tuple[Any, ...]:
            outputs = entry(args)
            kept = memory.setdefault(tuple(out.shape for out in outputs), outputs)
            for mine, out in zip(kept, outputs, strict=True):
                mine.copy_(out)
            return kept

        return run

    def stale(entry: Entry) -> Entry:
        first: list[tuple[Any, ...]] = []

        def run(args: list[Any]) -> tuple[Any, ...]:
            outputs = entry(args)
            first.append(outputs)
            return outputs if len(first) < 3 else tuple(out.clone() for out in first[1])

        return run

    check_conformance(plugin(litz_wrap_entry=counted), name="mine", examples=["pointwise"])
    assert len(ran) >= 8
    _, found = faults(plugin(litz_wrap_entry=same_memory), examples=["pointwise"])
    assert any(trial.what == "litz_wrap_entry" and "were held" in trial.problem for trial in found.problems)
    _, found = faults(plugin(litz_wrap_entry=stale), examples=["pointwise"])
    assert any(trial.what == "litz_wrap_entry" and "call 4" in trial.problem for trial in found.problems)


EXPORTER = """
from litz_aot.cpp_kernels import here, made_for, unpack

def pack(source, context, folder, common):
    from litz_aot import cpp_kernels

    return cpp_kernels.pack(source, context, folder, common)
"""
EXPORTERS = {
    "good": (EXPORTER, ""),
    "lacks one": (EXPORTER.replace("unpack", "made_for"), "has no function unpack(source, files, data)"),
    "other parameters": (EXPORTER.replace("source, context, folder", "source, folder"), "must be callable as pack("),
    "imports the compiler": (f"import litz.pipeline\n{EXPORTER}", "imports the compiler, litz.pipeline"),
    "not there": (None, "cannot be imported"),
    "wrong results": (
        EXPORTER + "def unpack(source, files, data):\n    return lambda *args: None\n",
        "elements are off",
    ),
}


@pytest.mark.parametrize("kind", EXPORTERS)
def test_exporters(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_interpreters: None) -> None:
    text, problem = EXPORTERS[kind]
    name = f"litz_exporter_{kind.replace(' ', '_')}"
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = plugin(litz_select_exporter=lambda target: Exporter(name) if target.type == "cpu" else None)
    if not problem:
        found = check_conformance(mine, name="mine", examples=["pointwise"])
        assert "litz_select_exporter" in found.tried
        return
    _, found = faults(mine, examples=["pointwise"])
    assert any(problem in trial.problem for trial in found.problems), str(found.problems)


def test_stores_of_graphs() -> None:
    kept: dict[tuple[str, str], bytes] = {}

    def keep(kind: str, key: str, content: bytes | None) -> None:
        if content is not None:
            kept[kind, key] = content

    def fails(kind: str) -> bytes:
        raise ConnectionError(kind)

    finds = {
        "good": (lambda kind, key: kept.get((kind, key)), ""),
        "half": (
            lambda kind, key: kept[kind, key][:9] if (kind, key) in kept else None,
            "bytes that it kept, 9 others",
        ),
        "anything": (lambda kind, key: b"{}", "it has what was never kept"),
        "fails": (fails, "ConnectionError"),
    }
    how: dict[str, Any] = {"name": "mine", "builds": False, "examples": ["pointwise"]}
    for find, problem in finds.values():
        kept.clear()
        mine = plugin(litz_find_graph=find, litz_keep_graph=keep)
        if not problem:
            found = check_conformance(mine, **how)
            assert len([trial for trial in found.trials if trial.what == "litz_find_graph"]) == 12
            continue
        _, found = faults(mine, builds=False, examples=["pointwise"])
        assert any(problem in trial.problem for trial in found.problems), str(found.problems)
    forgets = plugin(litz_find_graph=lambda: None, litz_keep_graph=keep)
    assert "litz_find_graph" in check_conformance(forgets, **how).untried


def test_samples_are_of_many_shapes_and_types() -> None:
    found, fatal = samples_of(aten.add.Tensor)
    assert not fatal
    shapes = {tuple(sample.call.tensors[0].shape) for sample in found}
    assert {(), (0, 5), (1, 1), (3, 5), (2, 3, 6, 6)} <= shapes
    assert len({sample.call.tensors[0].dtype for sample in found}) == 6
    assert any(not sample.call.tensors[0].is_contiguous() for sample in found)
    assert all(sample.again is not None for sample in found if max(sample.call.tensors[0].shape, default=0) > 1)
    assert len(samples_of(aten.mm.default)[0]) < len(found)  # eager takes square matrices alone
    assert samples_of(aten.add_.Tensor) == ([], {})  # writes into an argument
    assert not samples_of(aten.bernoulli.default)[0][0].values


def test_a_sample_that_ends_eagers_process_is_told_and_the_kit_goes_on() -> None:
    """As `_weight_norm` of integers does, which divides by 0."""
    with torch.library._scoped_library("litz_kit_fatal", "DEF") as own:
        own.define("halves(Tensor x) -> Tensor")

        def halves(x: torch.Tensor) -> torch.Tensor:
            if not x.is_floating_point():
                os.kill(os.getpid(), signal.SIGFPE)
            return x * 0.5

        own.impl("halves", halves, "CompositeExplicitAutograd")
        op = torch.ops.litz_kit_fatal.halves.default
        mine = plugin(litz_register_decompositions=lambda: {op: lambda x: x * 0.5})
        found = check_conformance(mine, name="mine", builds=False, variants=[VARIANTS[0], *VARIANTS[-3:]])
    assert found.tried == {f"decomposition of {op}"} and not found.problems
    ends = "eager ends its process (SIGFPE)"
    assert found.untried == {f"decomposition of {op}, {dtype}[3, 5] in rows": ends for dtype in ("int64", "bool")}


def test_a_sample_for_which_eager_writes_outside_its_memory_is_no_sample() -> None:
    """`_weight_norm_interface` gives norms that lie as an expanded operand does, three numbers for twelve, and writes
    four: what lay behind them was overwritten, and the process ended somewhere else, or not at all. Norms in the shape
    of a whole operand are none either: torch's fake kernel gives them another."""
    rows, expanded = VARIANTS[0], VARIANTS[3]
    found, fatal = samples_of(aten._weight_norm_interface.default, variants=[rows, expanded])
    assert fatal == {str(expanded): "SIGABRT"}
    assert not found


def test_ops_are_tried_in_order_of_their_names() -> None:
    """So `ops=` that counts takes the same ones in each process."""
    core = make_plugins((), extra=[("core", dict(builtin_plugins())["core"])], entry_points=())
    for ops in _ops(core, lambda op: True).values():
        assert len(ops) > 100 and list(map(str, ops)) == sorted(map(str, ops))


def test_a_good_decomposition_and_a_wrong_one() -> None:
    def sinh(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < 0.5, x + x**3 / 6 + x**5 / 120 + x**7 / 5040, (x.exp() - (-x).exp()) * 0.5)

    good = plugin(litz_register_decompositions=lambda: {aten.sinh.default: sinh})
    found = check_conformance(good, name="mine", variants=FEW)
    ways = {trial.way for trial in found.trials}
    assert ways == {"interpreted", "interpreted, dynamic", "built", "built, dynamic", "kept"}
    assert found.tried == {"decomposition of aten.sinh.default"} and not found.untried

    wrong = plugin(litz_register_decompositions=lambda: {aten.sinh.default: lambda x: x.exp() * 0.5})
    error, found = faults(wrong, variants=FEW, builds=False)
    assert len(found.problems) == len(found.trials) == 6
    assert "decomposition of aten.sinh.default" in str(error) and "elements" in str(error)


def test_another_type_is_found_and_named() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float16)

    error, _ = faults(
        plugin(litz_register_decompositions=lambda: {aten.sinh.default: half}), variants=FEW[:1], builds=False
    )
    assert "aten.sinh.default" in str(error) and "float16" in str(error)


def negated(program: Any, context: Any) -> Any:
    """Every tanh as its negative: wrong."""

    def rewrite(node: Any, args: Any) -> Any:
        found = with_args(node, args)
        return call("mul", found, const(-1.0, node.dtype)) if node.op == "tanh" else found

    loops = (
        replace(op, stores=map_stores(op.stores, rewrite)) if isinstance(op, Loop) else op for op in program.operations
    )
    return replace(program, operations=tuple(loops))


def test_a_wrong_pass_is_named_among_others() -> None:
    def passes(options: Any) -> list[Pass]:
        return [Pass("idle", "program", lambda program, context: program), Pass("negate", "program", negated)]

    mine = plugin(litz_register_passes=passes)
    error, found = faults(mine, examples=["unary", "size 0"], builds=False)
    assert {trial.what for trial in found.problems} == {"pass negate"}
    assert {trial.example for trial in found.problems} == {"unary"}
    assert "pass idle" in found.tried and "changed none" in found.untried["pass idle"]
    assert "pass negate, unary (interpreted)" in str(error)
    assert set(found.missing) == {"pass idle"} and "pass idle was not tried" in str(error)
    assert "may_be_untried=('idle',)" in error.todo


def test_passes_before_a_graph_and_a_partitioner_are_tried() -> None:
    def sums(noun: Any, context: Any) -> Any:
        if not any(node.target in (aten.tanh.default, torch.tanh, "tanh") for node in noun.nodes):
            return noun
        noun = noun.copy()
        for node in noun.nodes:
            if node.target == aten.tanh.default:
                node.target = aten.sin.default  # an operator of the same type and sizes, and other values
        return noun

    def partition(joint: Any) -> Any:
        more = {"num_fwd_outputs": joint.forward_outputs, **joint.more}
        return default_partition(joint.module, list(joint.inputs), **more)

    copied, wrong = Pass("mine_copied", "traced", sums), Pass("mine_wrong", "joint", sums)
    training = Example("training", lambda x: (x.tanh() * 2).exp().sum(), ((4, 5),), train=True)
    good = plugin(litz_register_passes=lambda: [copied], litz_partition=partition)
    found = check_conformance(good, name="mine", examples=[training])
    assert {trial.what for trial in found.trials} == {"pass mine_copied", "its other hooks"}
    bad = plugin(litz_register_passes=lambda: [copied, wrong], litz_partition=partition)
    error, _ = faults(bad, examples=[training])
    assert "pass mine_wrong" in str(error) and "pass mine_copied" not in str(error)


def test_a_choice_is_taken_and_its_result_compared() -> None:
    def wrong_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b + 1

    def offers(operation: Any, context: Any) -> list[Choice]:
        def choice(name: str, function: Any) -> Choice:
            payload = Extern(operation.name, operation.device, function, operation.args, outputs=operation.outputs)
            return Choice(name, "template", payload)

        return [choice("right", torch.mm), choice("wrong", wrong_mm)]

    specs = [
        TemplateSpec("mine", ("mm",), offers),
        *(TemplateSpec(n, ("mm",), lambda *a: []) for n in ("idle", "rare")),
    ]
    templates = plugin(litz_register_templates=lambda: specs)
    _, found = faults(templates, examples=["one row", "layer norm"], builds=False, may_be_untried=["rare"])
    assert set(found.missing) == {"template idle"} and set(found.untried) == {"template idle", "template rare"}
    assert {trial.what for trial in found.problems} == {"choice 'wrong'"}
    assert "choice 'right'" in found.tried


def test_estimates_are_asked_twice() -> None:
    counter = itertools.count(1)

    def guess() -> Estimate:
        us = float(next(counter))
        return Estimate(us, us, us, "more each time")

    _, found = faults(plugin(litz_estimate_runtime=guess), examples=["pointwise"], builds=False)
    assert {trial.what for trial in found.problems} == {"estimates"}
    assert "and then" in found.problems[0].problem
    steady = plugin(litz_estimate_runtime=lambda: Estimate(1.0, 1.0, 1.0, "always"))
    assert "estimates" in check_conformance(steady, name="mine", examples=["pointwise"], builds=False).tried


def test_what_is_not_tried_says_why() -> None:
    rules = {aten.sinh.default: lambda x: (x.exp() - (-x).exp()) * 0.5, aten.quantile.default: lambda *args: args[0]}
    mine = plugin(litz_register_decompositions=lambda: rules)
    found = check_conformance(mine, name="mine", ops=lambda op: op is aten.quantile.default, builds=False)
    assert found.trials == () and "give some: samples=" in found.untried["decomposition of aten.quantile.default"]
    assert "not tried: decomposition of aten.quantile.default" in str(found)


def test_samples_of_an_author() -> None:
    def split(x: torch.Tensor, size: int) -> torch.Tensor:
        return x.reshape(-1, size).sum(1)

    with torch.library._scoped_library("kit_test", "FRAGMENT") as library:
        library.define("pooled(Tensor x, int size) -> Tensor")
        library.impl("pooled", split, "CompositeExplicitAutograd")
        op = torch.ops.kit_test.pooled.default
        mine = plugin(litz_register_decompositions=lambda: {op: split})
        given = {op: [((torch.randn(6, 4), 3), {})]}
        found = check_conformance(mine, name="mine", samples=given, variants=(), builds=False)
        assert [trial.example for trial in found.trials] == ["t0: float32[6, 4]"] * 2


def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["litz_plugins.pytest_plugin"]')
    pytester.makepyfile(
        """
        from types import SimpleNamespace
        from litz_plugins import OptionSpec, hookimpl

        mine = SimpleNamespace(litz_register_options=hookimpl(lambda: [OptionSpec("level", int, 1, "a level")]))

        def test_check(check_litz_plugin):
            assert check_litz_plugin(mine, name="mine").options == ("mine.level",)

        def test_harness(litz_harness):
            assert litz_harness(mine, name="mine", options={"mine.level": 2}).options["mine.level"] == 2

        def test_conformance(check_litz_conformance):
            assert check_litz_conformance(mine, name="mine").trials == ()
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=3)


def test_without_litz_testing_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \./testing` in a checkout"):
        check_conformance(SimpleNamespace())


def test_a_failure_is_the_test_and_the_error(pytester: pytest.Pytester) -> None:
    """No frames of the kit's, and nothing of torch's trace, which pytest captures line by line."""
    pytester.makepyfile(
        """
        from types import SimpleNamespace

        import torch

        from litz_plugins import hookimpl
        from litz_plugins.testing import check_conformance

        OP = torch.ops.aten.bucketize.Tensor


        def test_wrong():
            rule = lambda x, bounds, **more: torch.zeros(x.shape, dtype=torch.int64)
            plugin = SimpleNamespace(litz_register_decompositions=hookimpl(lambda: {OP: rule}))
            samples = {OP: [((torch.ones(4), torch.tensor([0.0, 0.5])), {})]}
            check_conformance(plugin, name="mine", samples=samples, variants=(), builds=False)
        """
    )
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q").outlines
    assert any("does not conform, 2 of 2 trials" in line for line in found)
    assert len(found) < 30, found
