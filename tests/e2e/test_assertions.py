"""Assertions on data hold in compiled programs: where eager raises, the program raises, and nothing is done before.

Most programs are interpreted, which needs no compiler: that a Check is in the program, and before what depends on it,
is the lowering's and the scheduler's work. What ends in the wrapper's text is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import ones, tensor

import litz_aot
from litz.capture.aot import compile_with_aot
from litz.codegen.facts import entry_facts
from litz.driver.unused_options import recording_notes
from litz.ir import Check
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.options import make_options
from litz.pipeline import decompositions, make_compiler, plan_schedule, schedule_graph, schedule_only
from litz.schedule import check_schedule
from litz.schedule.schedule_program import unscheduled
from litz.target import target_of
from support.compare import device_param
from support.retarget import cuda_schedules
from support.versions import OLD_TORCH


@pytest.fixture(autouse=True)
def capture_data() -> Iterator[None]:
    wanted = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(wanted):
        yield


def interpreted(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`function` compiled: its kernels in the order of the schedule, each interpreted."""
    torch._dynamo.reset()
    compiler = make_compiler()

    def compile_graph(graph: Any) -> Callable[[list[Any]], Any]:
        schedule = schedule_graph(graph, compiler)
        check_schedule(schedule)
        program = unscheduled(schedule)
        verify(program)
        return lambda args: interpret(program, args)

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        return compile_with_aot(gm, inputs, compile_graph=compile_graph, decompositions=decompositions(compiler))

    return torch.compile(function, backend=backend, fullgraph=True, **settings)


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str | None]:
    """What a call returned and left in its arguments, or the message of its error."""
    own = [arg.clone() for arg in args]
    try:
        return (function(*own), own), None
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        return (None, [*args]), str(error)


def data(*values: float) -> torch.Tensor:
    return tensor(values, dtype=torch.float32)


def is_four(x: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) == 4, lambda: "need four")
    return z * 2


def equals_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) == y.size(0), lambda: "as many as y")
    return z.squeeze(1) + y


def in_range(x: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) >= 3, lambda: "three at least")
    torch._check(z.size(0) < 8, lambda: "less than eight")
    return z * 2


def divides(x: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) % 3 == 0, lambda: "in threes")
    return z.view(3, -1) * 2


def item_is(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check(n == 4, lambda: "must be 4")
    return x * n


def item_as_size(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check(n >= 0, lambda: "negative")
    torch._check(n < 20, lambda: "too many")
    return ones(n) * 2


def item_of_float(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().item()
    torch._check(n < 4.5, lambda: "too large")
    return x * n


def item_of_bool(x: torch.Tensor) -> torch.Tensor:
    torch._check((x > 0).all().item(), lambda: "all of them")
    return x * 2


def unused(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.nonzero().size(0) == 4, lambda: "need four")
    return x * 2


def two_sizes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x.nonzero(), y.nonzero()
    torch._check(a.size(0) == b.size(0), lambda: "as many")
    return a * b


def equal_calls(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b, c = torch.masked_select(x, x > 0), torch.masked_select(x, x > 0), y.nonzero()
    torch._check(a.size(0) == b.size(0))
    torch._check(c.size(0) == a.size(0), lambda: "c as a")
    return a + b + c.squeeze(1)


def written_after(x: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) == 4, lambda: "need four")
    x.add_(1)
    return x * 2


def tensor_assertion(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() < 7)
    x.add_(1)
    return x.sin()


def tensor_assertion_with_message(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() < 7, "the sum is too large")
    x.add_(1)
    return x.sin()


def fits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check(n >= 0, lambda: "negative")
    torch._check(n <= y.size(0), lambda: "more than y")
    return y.narrow(0, 0, n) * 2


def value(x: torch.Tensor) -> torch.Tensor:
    n = x.sum().to(torch.int64).item()
    torch._check_value(n < 6, lambda: "the value")
    return x * n


def selected(x: torch.Tensor) -> torch.Tensor:
    s = torch.masked_select(x, x > 0)
    torch._check(s.size(0) * 2 == 8, lambda: "twice that is eight")
    return s + torch.arange(4)


def distinct(x: torch.Tensor) -> torch.Tensor:
    s = torch.unique(x)
    torch._check(s.size(0) == 2, lambda: "two of them")
    return s + torch.arange(2)


def repeated(x: torch.Tensor) -> torch.Tensor:
    s = torch.repeat_interleave(x, x.to(torch.int64))
    torch._check(s.size(0) == 4, lambda: "four of them")
    return s + torch.arange(4)


def counted(x: torch.Tensor) -> torch.Tensor:
    s = torch.bincount(x.to(torch.int64))
    torch._check(s.size(0) == 2, lambda: "two bins")
    return s + torch.arange(2)


PROGRAMS: list[tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]] = [
    # A program, then calls of it; the first is the one that it is compiled for.
    (is_four, [(ones(4),), (data(1, 0, 1),), (ones(5),)]),
    (equals_input, [(ones(4), ones(4)), (data(1, 0, 1), ones(3))]),
    (in_range, [(ones(4),), (data(1, 0, 1),), (ones(9),), (ones(7),)]),
    (divides, [(ones(6),), (ones(5),)]),
    (item_is, [(ones(4),), (ones(5),)]),
    (item_as_size, [(ones(4),), (-ones(4),), (ones(50),), (data(0, 0),)]),
    (item_of_float, [(ones(4),), (ones(5),)]),
    (item_of_bool, [(ones(4),), (data(1, 0),)]),
    (unused, [(ones(4),), (ones(5),)]),
    (two_sizes, [(ones(4), ones(4)), (ones(4), ones(3))]),
    (equal_calls, [(ones(4), ones(4)), (data(1, 0, 1, 1), ones(4)), (data(1, 0), data(0, 1))]),
    (written_after, [(ones(4),), (ones(5),)]),
    (tensor_assertion, [(ones(4),), (ones(9),)]),
    (tensor_assertion_with_message, [(ones(4),), (ones(9),)]),
    (fits, [(ones(4), ones(6)), (-ones(4), ones(6)), (ones(7), ones(6)), (ones(7) * 0, ones(6))]),
    (value, [(ones(4),), (ones(9),)]),
    (selected, [(ones(4),), (data(1, 0, 1, 1),), (ones(5),)]),
    (distinct, [(data(1, 2, 1),), (ones(3),), (data(1, 2, 3),)]),
    (repeated, [(data(1, 2, 1),), (ones(3),), (data(1, 2, 3),)]),
    (counted, [(data(1, 0, 1),), (data(0, 0),), (data(1, 2, 3),)]),
]


TENSOR_ASSERTIONS = (tensor_assertion, tensor_assertion_with_message)
DYNAMIC = (is_four, equals_input, fits, two_sizes, tensor_assertion)


FAILS_IN_OLD_TORCH: dict[Callable[..., Any], str] = {
    value: "dynamo of torch before 2.13 cannot trace torch._check_value with a message",
}


def marks_of(program: Callable[..., Any]) -> list[pytest.MarkDecorator]:
    reason = FAILS_IN_OLD_TORCH.get(program)
    return [] if reason is None else [pytest.mark.xfail(OLD_TORCH, reason=reason, strict=True)]


def told(message: str) -> str:
    """A pattern for the whole of what a compiled program says where eager says `message`, and a note on where.

    Dynamo of torch before 2.13 puts an assertion of its own in place of torch._check before any backend sees the graph.
    The user's message is lost then (with aot_eager too), so litz names the condition and the sizes.
    """
    said = r"Runtime assertion failed: .+, where .+: .+ = .+" if OLD_TORCH else re.escape(message)
    return rf"^{said}(\nlitz: in .+, of graph.+)?$"


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("program", "calls", "dynamic"),
    [
        *(pytest.param(p, calls, None, id=p.__name__, marks=marks_of(p)) for p, calls in PROGRAMS),
        *(pytest.param(p, calls, True, id=f"{p.__name__}-dynamic") for p, calls in PROGRAMS if p in DYNAMIC),
    ],
)
def test_a_program_raises_what_eager_raises(
    program: Callable[..., Any], calls: list[tuple[torch.Tensor, ...]], dynamic: bool | None
) -> None:
    compiled = interpreted(program, dynamic=dynamic)
    for args in calls:
        (expected, left), message = outcome(program, args)
        (actual, ours), our_message = outcome(compiled, args)
        if message is None or program in TENSOR_ASSERTIONS:
            assert our_message == message
        else:
            assert re.search(told(message), our_message or "")
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(ours, left)


def test_without_a_message_the_error_names_the_size_and_its_value():
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero().squeeze(1) + torch.arange(4)

    compiled = interpreted(plain)
    compiled(ones(4))
    with pytest.raises(RuntimeError, match=r"Eq\(u0, 4\), where u0 is size 0 of nonzero: u0 = 2"):
        compiled(data(1, 0, 1))


def test_a_range_that_is_no_assertion_of_its_own():
    def constrained(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().to(torch.int64).item()
        torch.sym_constrain_range(n, min=2, max=6)
        return ones(n)

    compiled = interpreted(constrained)
    assert compiled(ones(4)).shape == (4,)
    with pytest.raises(RuntimeError, match=r"must be between 2 and 6: u0 = 9"):
        compiled(ones(9))


@device_param
def test_compiled_forward_and_backward(device: str) -> None:
    def train(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = x.nonzero()
        torch._check(z.size(0) == 4, lambda: "100% must be four")
        return (w[z.squeeze(1)] * w.sum()).sin().sum()

    torch._dynamo.reset()
    compiled = torch.compile(train, backend="litz", fullgraph=True)
    w = torch.rand(7, device=device, requires_grad=True)
    loss = compiled(ones(4, device=device), w)
    loss.backward()
    reference = w.detach().double().requires_grad_()
    train(ones(4, device=device), reference).backward()
    torch.testing.assert_close(w.grad.double(), reference.grad, rtol=1e-5, atol=1e-5)
    for size in (3, 5):
        with pytest.raises(RuntimeError, match=told("100% must be four")):
            compiled(ones(size, device=device), w)


def test_assertions_of_a_package(tmp_path: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.sum().to(torch.int64).item()
            torch._check(n >= 0)
            torch._check(x.nonzero().size(0) == 4)
            torch._assert_async(x.max() < 3)
            return ones(n) * x.sum()

    n = torch.export.Dim("n", min=2, max=50)
    litz_aot.compile(Module(), (ones(4),), tmp_path / "package", dynamic_shapes={"x": {0: n}})
    loaded = litz_aot.load(tmp_path / "package")
    assert loaded(data(1, 2, 1, 1)).shape == (5,)
    for bad, message in [
        (-ones(4), r"0 <= u0.*u0 = -4"),
        (ones(5), r"size 0 of nonzero: .* = 5"),
        (data(4, 1, 1, 1), "single nonzero value"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            loaded(bad)


def test_two_equal_calls_in_training():
    def twice(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.masked_select(x, x > 0.5), torch.masked_select(x, x > 0.5)
        return a.sum() + b.pow(2).sum()

    compiled = interpreted(twice)
    for values in ((1, 0, 2), (0, 0, 0), (3, 1, 1)):
        ours, theirs = (data(*values).requires_grad_() for _ in range(2))
        torch.testing.assert_close(compiled(ours), twice(theirs))
        compiled(ours).backward()
        twice(theirs).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@device_param
def test_what_a_custom_op_returns_is_what_its_fake_says_or_an_error(device: str) -> None:
    @torch.library.custom_op("litz_test_asserts::some", mutates_args=())
    def some(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(int(x.sum()))

    @some.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(2 * torch.library.get_ctx().new_dynamic_size())

    @torch.library.custom_op("litz_test_asserts::four", mutates_args=())
    def four(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(int(x.sum()))

    @four.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(4)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: some(x) * 2, backend="litz", fullgraph=True)
    assert compiled(ones(4, device=device)).shape == (4,)
    with pytest.raises(RuntimeError, match=r"litz_test_asserts.some.* \[5\] .* \[4\]"):
        compiled(ones(5, device=device))
    compiled = torch.compile(lambda x: four(x).sum(), backend="litz", fullgraph=True)
    assert compiled(ones(4, device=device)) == 4
    for bad in (data(1, 1, 0, 0), data(1, 1, 5, 0)):
        with pytest.raises(RuntimeError, match=r"litz_test_asserts.four.* says .*\[4\]"):
            compiled(bad.to(device))


@device_param
def test_checks_survive_for_every_size(device: str) -> None:
    """With a schedule for each of several sizes, each has them."""
    compiled = torch.compile(equals_input, backend="litz", dynamic=True, options={"sizes": (4, 64)})
    for n in (4, 64):
        x = ones(n, device=device)
        torch.testing.assert_close(compiled(x, x), equals_input(x, x))
        x = x.clone()
        x[1] = 0
        with pytest.raises(RuntimeError, match=told("as many as y")):
            compiled(x, x)


def test_no_cuda_graph_is_recorded_which_could_not_check():
    (schedule,) = cuda_schedules(lambda backend: torch.compile(is_four, backend=backend)(ones(4)))
    kinds = [type(step).__name__ for step in schedule.steps]
    assert kinds.index("Check") < kinds.index("Kernel")
    plan, asked = plan_schedule(schedule, make_compiler()), make_options("reduce-overhead")
    facts, targets = entry_facts(plan), plan.targets.values()
    assert facts.obstacle.startswith("only a run tells the sizes that ") and "cuda:0" in facts.devices
    (note,) = recording_notes("graph0", asked, facts, targets)
    assert note.chosen == "no CUDA graph" and note.reason == facts.obstacle
    assert not recording_notes("graph0", make_options(), facts, targets)
    assert not recording_notes("graph0", asked, facts, [target_of("cpu")])
    assert not recording_notes("graph0", asked, replace(facts, obstacle=""), targets)


def test_a_recording_cannot_hold_memory_of_the_host():
    (schedule,) = schedule_only(lambda x: x + 1, [ones(4)])
    reason = entry_facts(plan_schedule(schedule, make_compiler())).obstacle
    assert reason.startswith("a recording cannot hold memory on cpu (")


@pytest.mark.skipif(OLD_TORCH, reason="torch 2.11's dynamo drops some assertions of sizes, with every backend")
@pytest.mark.parametrize("op", [torch.nonzero, torch.argwhere, torch.unique], ids=lambda op: op.__name__)
def test_a_size_that_was_decided_of_an_equal_call_that_is_gone(op: Callable[..., torch.Tensor]) -> None:
    """torch gives both calls one size, a number once it is checked, and drops the call that nothing reads, and with it
    what was asserted: the other one's size was taken for the number (2, where memory had room for 1)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        op(x)
        found = op(x)
        torch._check(found.size(0) == 2)
        return found * 2

    for compiled in (interpreted(f), torch.compile(f, backend="litz", fullgraph=True)):
        torch.testing.assert_close(compiled(torch.tensor([0, 3, 0, 3, 3])[1:4]), f(torch.tensor([3, 0, 3])))
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            compiled(torch.tensor([0, 0, 0]) if op is torch.unique else torch.tensor([0, 3, 0]))


@torch.library.custom_op("litz_test_asserts::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


FINDS_OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "where": lambda x: x[torch.where(x > 0)],
    "where-alone": lambda x: torch.where(x > 0)[0],
    "mask": lambda x: x[x > 0],
    "nonzero-as-tuple": lambda x: (x > 0).nonzero(as_tuple=True)[0],
    "repeated": lambda x: x.repeat_interleave((x > 0).to(torch.int64)),
    "users-op": positive,
}


@pytest.mark.each_value
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("find", FINDS_OUT.values(), ids=FINDS_OUT)
def test_an_equality_about_a_result_that_nothing_else_reads(
    find: Callable[[torch.Tensor], torch.Tensor], train: bool
) -> None:
    """AOTAutograd traces the size as the number that it was asserted to be, and the call has no users left."""

    def f(x: torch.Tensor) -> torch.Tensor:
        found = find(x.detach())
        torch._check(found.size(0) == 2)
        found.sum(0)
        return (x * x).sin()

    compiled = interpreted(f)
    x = data(1, -1, 3).requires_grad_(train)
    torch.testing.assert_close(compiled(x), f(x))
    for bad in (data(1, -1, -3), data(1, 1, 3), data(-1, -1, -1)):
        with pytest.raises(RuntimeError, match=r"Runtime assertion failed: .*= [013]$"):
            compiled(bad.requires_grad_(train))


OF_NOTHING: dict[str, Callable[[torch.Tensor], Any]] = {
    "select": lambda x: x[x > 0].select(0, 1) * 2,
    "select-from-the-end": lambda x: (x[x > 0] + 1).select(0, -2) * 2,
    "select-as-view": lambda x: (x[x > 0] + 1).select(0, 1),
    "select-of-rows": lambda x: (x > 0).nonzero().select(0, 1).flip(0),
    "select-scatter": lambda x: torch.select_scatter(x[x > 0], x.sum(), 0, 1),
    "max": lambda x: x[x > 1].max() * 2,
    "min": lambda x: x[x > 1].min(),
    "max-along": lambda x: x[x > 1].max(0),
    "min-along": lambda x: x[x > 1].min(0, keepdim=True)[0] + 1,
    "aminmax": lambda x: torch.aminmax(x[x > 1]),
}


@pytest.mark.ci_cases("select-from-the-end", "select-scatter", "max-along", "aminmax")
@pytest.mark.parametrize("function", OF_NOTHING.values(), ids=OF_NOTHING)
def test_what_eager_refuses_of_a_size_that_torch_asserts_nothing_about(function: Callable[..., Any]) -> None:
    compiled = interpreted(function)
    for x in (data(1, 2, -1, 3), data(5, 1)):
        torch.testing.assert_close(compiled(x), function(x))
    for bad in (data(-1, 1, -3), data(-1, -3)):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(bad)
        with pytest.raises(eager.type, match=r"[(:].* = [01]$"):
            compiled(bad)


def test_the_kernel_of_a_selection_beyond_the_end_does_not_run():
    compiled = torch.compile(lambda x: x[x > 0].select(0, 2) + 1, backend="litz", fullgraph=True)
    assert compiled(data(1, -1, 2, 3)) == 4
    with pytest.raises(IndexError, match=r"select\(\): index 2 out of range for size u0 at dimension 0: u0 = 0"):
        compiled(data(-1, -1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_checked_of_what_tracing_knows(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().to(torch.int64).item()
        torch._check(n >= 2)
        found = x.new_ones(n)
        return x.select(0, -1) + x.max() + torch.select_scatter(x, x[0], 0, 1) + found.select(0, 1) + found.max()

    torch._dynamo.reset()
    (schedule,) = schedule_only(f, [ones(4)], dynamic=dynamic)
    assert [str(step.condition) for step in schedule.steps if isinstance(step, Check)] == ["2 <= u0"]


@pytest.mark.ci_cases("square-False", "sum-True", "cube-True", "inverse-False")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["square", "sum", "cube", "inverse"])
def test_a_power_of_a_negative_scalar_read_off_a_tensor(name: str, dynamic: bool) -> None:
    """torch asserts that the base is not negative where it traces the graph again, whatever the exponent is."""
    powers: dict[str, Callable[[float, int], float]] = {
        "square": lambda v, n: v**2,
        "sum": lambda v, n: v**2 + n,
        "cube": lambda v, n: v**3.0,
        "inverse": lambda v, n: v**-1,
    }
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        power = powers[name]
        compiled = torch.compile(
            lambda x: torch.full((2,), power(x.double().sum().item(), x.size(0))), backend="litz", dynamic=dynamic
        )
        assert compiled(-torch.ones(4)).tolist() == [power(-4.0, 4)] * 2


def test_what_a_program_claims_of_the_base_of_a_power_is_checked() -> None:
    def claimed(x: torch.Tensor) -> torch.Tensor:
        value = x.double().sum().item()
        torch._check(value >= 0)
        return torch.full((2,), value**2)

    def fractional(x: torch.Tensor) -> torch.Tensor:  # complex in Python
        value = x.double().sum().item()
        return torch.full((2,), value**2) + torch.full((2,), value**0.5)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for function in (claimed, fractional):
            torch._dynamo.reset()
            with pytest.raises(RuntimeError):
                torch.compile(function, backend="litz")(-torch.ones(4))


@pytest.mark.xfail(OLD_TORCH, reason="dynamo of torch before 2.13 cannot trace torch._check_tensor_all", strict=True)
def test_a_check_of_data_beside_one_that_is_true_of_all_sizes() -> None:
    def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x @ ones(4, 4)
        torch._check(x.numel() > 2)
        torch._check_tensor_all(y > 0)
        return out

    torch._dynamo.reset()
    compiled = torch.compile(checked, backend="litz", dynamic=True, fullgraph=True)
    x = torch.randn(5, 4)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(x, -ones(3))
    torch.testing.assert_close(compiled(x, ones(3)), checked(x, ones(3)))
