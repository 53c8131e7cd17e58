"""Where two schedules of one graph differ, and in which order steps run: parts mean what they do in the whole."""

import pytest
import torch

from litz.driver.stages import capture, prepare_graph, schedule_prepared
from litz.ir.interpret import interpret
from litz.pipeline import make_compiler
from litz.report.log import Log
from litz.schedule.dependences import dependences
from litz_autotune.difference import Inseparable, difference, same_steps, whole
from litz_passes.schedule.order import far_bytes, nearest_order


def schedules(fn, *args, dynamic=False, **options):
    """The schedules of `fn`'s graphs, by estimates and with `options`."""
    found = []

    def keep(graph):
        for given in ({}, options):
            compiler, log = make_compiler(options=given), Log()
            found.append(schedule_prepared(prepare_graph(graph, compiler, log), compiler, log))
        return lambda inputs: torch.fx.Interpreter(graph.module).run(*inputs, enable_io_processing=False)

    torch._dynamo.reset()
    backend = lambda gm, inputs: capture(gm, inputs, keep, make_compiler())
    torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return found


def f(x, y):
    h = torch.softmax(x @ y, -1)
    return h.sum(0), (y * 2).exp(), h + 1


X = torch.randn(16, 16), torch.randn(16, 16)


def values(program):
    torch.manual_seed(0)
    sizes = {name: program.buffers[name].layout for name in program.inputs if isinstance(name, str)}
    return [
        torch.randn([program.hint(size) for size in sizes[item].size]) if isinstance(item, str) else program.hint(item)
        for item in program.inputs
    ]


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_differs_is_taken_out_and_means_the_same(dynamic):
    first, second = schedules(f, *X, dynamic=dynamic, veto=["fuse"])
    found = difference(first, second)
    assert not found.whole and len(found.first.steps) < len(found.second.steps) < len(second.steps)
    for given in (found.first, found.second):
        # No library call, which both have, and nothing that only the other reads.
        assert not given.externs and given.program.outputs == found.first.program.outputs
    assert found.first.program.inputs == found.second.program.inputs
    mine, theirs = (interpret(each.program, values(each.program)) for each in (found.first, found.second))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_all_of_both_means_the_same():
    found = whole(*schedules(f, *X, veto=["fuse", "inline_pointwise"]))
    assert found.whole and found.nbytes > 0
    mine, theirs = (interpret(each.program, values(each.program)) for each in (found.first, found.second))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_equal_schedules_do_not_differ():
    first, second = schedules(f, *X)
    assert same_steps(first, second) and difference(first, second) is None


def test_what_draws_is_not_run():
    def drawn(x):
        return torch.multinomial(x.exp(), 2), (x * 2).exp() + 1, x.sum(0)

    first, second = schedules(drawn, torch.rand(4, 8), veto=["fuse"])
    assert difference(first, second) is None or not difference(first, second).whole
    with pytest.raises(Inseparable, match="multinomial"):
        whole(first, second)


def test_a_users_op_is_not_run():
    calls = []

    @torch.library.custom_op("litz_difference::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    @count.register_fake
    def _(x):
        return torch.empty_like(x)

    with pytest.raises(Inseparable, match="count"):
        whole(*schedules(lambda x: count(x) + 1, torch.rand(4)))


def test_what_was_just_written_is_read_first():
    def two_ways(x):
        a = torch.sin(x @ x)
        b, c = x @ a, a @ x
        return (b @ b).sum(), (c @ c).sum()

    (schedule, _) = schedules(two_ways, torch.rand(64, 64))
    program, steps = schedule.program, schedule.steps
    order = nearest_order(steps, dependences(steps, program.buffers))
    near = [steps[n] for n in order]
    assert sorted(order) == list(range(len(steps)))
    written = {name: n for n, step in enumerate(near) for name in step.writes}
    assert all(written.get(name, -1) < n for n, step in enumerate(near) for name in step.reads)
    matrix = 64 * 64 * 4
    assert far_bytes(near, program, -1) == sum(
        program.hint(program.buffers[name].nbytes) for step in steps for name in step.reads
    )
    assert far_bytes(near, program, 100 * matrix) == matrix  # x, once
    assert far_bytes(near, program, 3 * matrix) <= far_bytes(steps, program, 3 * matrix)
