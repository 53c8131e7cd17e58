"""Decisions of CUDA graphs without a GPU: every variant that would be tried, and what would be run of it, is right."""

import functools
import pickle

import pytest
import torch

from litz import pipeline
from litz.driver import stages
from litz.driver.variants import Tuning
from litz.ir.interpret import interpret
from litz_autotune.pool import dumps
from litz_autotune.race import make_inputs, mismatch
from litz_autotune.search import Search
from litz_contractions.subprogram import on_device
from litz_plugins.vetoes import parts_of
from support.retarget import first_variant, to_cuda

CPU = torch.device("cpu")


class Judging:
    """Runs both sides of each duel in the interpreter on the CPU, after a journey to another process. wins: whether the
    second is said to be faster."""

    def __init__(self, wins):
        self.wins, self.duels = wins, []

    def run(self, requests, timeout=0.0):
        found = []
        for request in requests:
            duel = pickle.loads(dumps(request))
            self.duels.append(duel)
            first, second = (on_device(each.program, CPU) for each in (duel.first, duel.second))
            given = dict(zip(map(str, first.inputs), make_inputs(first, torch.Generator().manual_seed(0)), strict=True))
            others = make_inputs(second, torch.Generator().manual_seed(0))
            both = [
                interpret(first, list(given.values())),
                interpret(second, [given.get(str(item), own) for item, own in zip(second.inputs, others, strict=True)]),
            ]
            pairs = [[torch.nan_to_num(each) for each in results] for results in both]
            assert not mismatch(*pairs)
            found.append(([100.0] * 12, [90.0 if self.wins else 110.0] * 12))
        return found


def tuned(fn, *args, wins, dynamic=False, **options):
    """What `fn` gives, and the searches of its graphs as if on a GPU: (tuning, best, record, runner) of each."""
    compiler = pipeline.make_compiler(
        None, {"max_autotune": True, "autotune.decisions": False, "debug": True, **options}
    )
    made = []

    def keep(graph):
        moved = to_cuda(graph)
        tuning = Tuning(moved, first_variant(moved, compiler), compiler)
        runner = Judging(wins)
        search = Search(tuning, runner, float("inf"))
        search._fits = lambda found: True
        best, record = search.run()
        made.append((tuning, best, record, runner))
        return lambda inputs: torch.fx.Interpreter(graph.module).run(*inputs, enable_io_processing=False)

    torch._dynamo.reset()
    backend = functools.partial(stages.capture, compile_graph=keep, compiler=compiler)
    result = torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return result, made


def block(x, w, b):
    h = torch.nn.functional.layer_norm(x, (64,), w, b)
    s = torch.softmax(h @ h.transpose(1, 2), -1) @ h
    return x + torch.nn.functional.gelu(s), h.sum((0, 1)), (x * 2).var(-1)


def norms(pairs):
    return sum(torch.nn.functional.rms_norm(x, w.shape, w).cos().sum() for x, w in pairs)


@pytest.mark.each_value
@pytest.mark.parametrize("wins", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_block(wins, dynamic):
    args = torch.randn(2, 48, 64), torch.randn(64), torch.randn(64)
    _, made = tuned(block, *args, wins=wins, dynamic=dynamic)
    ((tuning, best, record, runner),) = made
    assert runner.duels and len(record.tried) > 2
    assert (best.ways != {}) == wins
    if not wins:
        assert best is tuning.first
    for each in record.tried:
        assert each.reason and (each.us is None or each.us[0] > 0)


@pytest.mark.nightly
@pytest.mark.parametrize("wins", [False, True])
def test_training_with_split_reductions_and_launches_for_several(wins):
    torch.manual_seed(0)
    pairs = [[torch.randn(*size, requires_grad=True) for size in ((1024, n), (n,))] for n in (48, 64)]
    result, made = tuned(norms, pairs, wins=wins)
    result.backward()
    assert len(made) == 2
    makers = {parts_of(key)[1] for tuning, *_ in made for key in tuning.first.weighed}
    assert {"fuse", "split_reductions", "run_beside"} <= makers
    tried = {each.name.partition("/")[0] for *_, record, _ in made for each in record.tried}
    assert {"split_reductions", "run_beside"} <= tried
    assert any(best.ways for _, best, *_ in made) == wins


@pytest.mark.nightly
def test_a_launch_more_has_to_gain_what_it_costs_the_host():
    """Without CUDA graphs, or who records them, the device's clock does not see what launches take."""
    args = torch.randn(2, 48, 64), torch.randn(64), torch.randn(64)
    for graphs, missing in ((False, ()), (True, ()), (True, ("cudagraphs",))):
        _, made = tuned(block, *args, wins=True, cuda_graphs=graphs, disable_plugins=missing)
        ((_, _, record, runner),) = made
        more = [len(duel.second.steps) - len(duel.first.steps) for duel in runner.duels]
        assert any(n > 0 for n in more)
        handicapped = [each for each in record.tried if each.us and each.us[1] > 90.0 and not each.whole]
        assert bool(handicapped) == (not graphs or bool(missing))
