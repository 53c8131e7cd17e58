"""What the fuzzer found, made small. Each program once gave another result than eager, or none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from litz_testing.fuzz.check import Checker, Failure
from litz_testing.fuzz.compare import Complaint
from litz_testing.fuzz.execute import FuzzCompiler
from litz_testing.fuzz.inputs import InputSpec
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_testing.fuzz.reference import reference_of
from support.interpreted import asked_for

pytestmark = pytest.mark.xdist_group("fuzz found")

F32, I64, U8 = torch.float32, torch.int64, torch.uint8


def program(
    inputs: tuple[InputSpec, ...],
    *lines: str,
    outputs: tuple[str, ...] = (),
    dynamic: bool = False,
    grad: bool = False,
    by_dynamo: bool = False,
    raises: bool = False,
) -> FuzzProgram:
    """Each line makes v0, v1, ...; "x0: ..." writes x0. The last value is the output unless others are named."""
    statements = []
    for number, line in enumerate(lines):
        written, _, text = line.rpartition(": ") if line[:3] in ("x0:", "v0:") else ("", "", line)
        statements.append(Statement("" if written else f"v{number}", text, written))
    last = next((s.target for s in reversed(statements) if s.target), "x0")
    return FuzzProgram(inputs, tuple(statements), outputs or (last,), dynamic, grad, by_dynamo=by_dynamo, raises=raises)


FOUND = {
    "repeat of odd strides was not contiguous": program(
        (InputSpec((1, 2, 1, 2), F32, 506799, order=(3, 0, 1, 2)),),
        "x0.repeat((2, 1, 2, 1, 1))",
    ),
    "as_strided of what repeat made read other elements": program(
        (InputSpec((4, 1), F32, 2, order=(1, 0)),),
        "x0.repeat((1, 2))",
        "v0.as_strided((1, 3), (2, 1), 1)",
    ),
    "a saved tensor with gaps was read with the strides of eager, beyond its end": program(
        (InputSpec((2, 1), F32, 158668, steps=(3, 1)), InputSpec((1, 1), F32, 338135)),
        "torch.slice_scatter(x0, x1, 0, 1, 2)",
        "(v0 - v0.mean(0, keepdim=True)) * torch.rsqrt(v0.var(0, correction=0, keepdim=True) + 0.1)",
        grad=True,
    ),
    "a view of an input was returned as a copy, which AOTAutograd takes for the view": program(
        (InputSpec((1, 12), F32, 70959, steps=(2, 2), offset=5),),
        "x0.reshape((x0.size(0), x0.size(1) // 6, 6))",
        dynamic=True,
    ),
    "as_strided counted in a storage with gaps that had none here": program(
        (InputSpec((9, 9), I64, 997867, steps=(1, 2)),),
        "x0.split((8, x0.size(0) - 8), 0)[0]",
        "x0: x0.select(1, -1).zero_()",
        "v0: v0[:, 1:].fill_(3)",
        outputs=("v0",),
        dynamic=True,
    ),
    "sizes that guards make equal had to be equal expressions": program(
        (InputSpec((1, 2, 6, 2), F32, 521238), InputSpec((1, 2, 2, 2), I64, 913454, "index", 2)),
        "x0[:, :, 3::2]",
        "torch.take_along_dim(v0, x1, 1)",
        dynamic=True,
    ),
    "a row of one number that is none had no deviation on a GPU": program(
        (InputSpec((1, 3, 2), F32, 473025),),
        "(x0 - x0.amin(1, keepdim=True)).detach().sqrt()",
        "torch.var(v0, 0, correction=0)",
    ),
    "a lane beyond a row's end was stored where a row is one number, on a GPU": program(
        (InputSpec((1, 1), F32, 700121),),
        "x0: x0.clamp_(-2, 2)",
        "x0.expand((3, 1, 1))",
        "torch.log_softmax(v1, 0)",
    ),
    "a total was forgotten that a second reduction of the same kernel takes as its only value": program(
        (InputSpec((), F32, 94045),),
        "torch.sum(x0)",
        "torch.argmin(v0)",
        outputs=("v1", "v0"),
    ),
    "a total was forgotten after its deviation": program(
        (InputSpec((1,), F32, 793394),),
        "torch.sum(x0, 0, keepdim=True)",
        "torch.std(v0, (0,), correction=0)",
        outputs=("v1", "v0"),
    ),
    "a flipped tensor and a view of it did not share memory": program(
        (InputSpec((1, 4), F32, 428347),),
        "x0.flip(-2)",
        "v0.view((v0.size(0), v0.size(1) // 2, 2))",
        outputs=("v1", "v0"),
        dynamic=True,
    ),
    "a slice of an unfolded tensor is replaced in memory where elements overlap": program(
        (InputSpec((5, 1, 1, 3), F32, 892566), InputSpec((5, 5, 1), F32, 1)),
        "x1.unfold(1, 3, 2)",
        "torch.slice_scatter(v0, x0, 1, 1, 2)",
        "v1.to(torch.float64)",
        outputs=("v1", "v2"),
    ),
    "a value that is only stored was kept in an array, and not found there": program(
        (InputSpec((2, 2, 2), torch.bfloat16, 971595, expanded=(1,)),),
        "torch.log_softmax(x0, 1)",
        dynamic=True,
    ),
    "where an input begins in its storage was a symbol without a value": program(
        (InputSpec((7, 7), F32, 149293, order=(1, 0), steps=(2, 1), offset=5),),
        "x0.split((5, x0.size(1) - 5), 1)[-1]",
        dynamic=True,
    ),
    "as_strided of a transposed input with symbolic sizes": program(
        (InputSpec((7, 7), F32, 149293, order=(1, 0), offset=5),),
        "x0.split((5, x0.size(1) - 5), 1)[-1]",
        dynamic=True,
    ),
    "a view was returned nearer to its storage's start than in eager, and made again from there": program(
        (InputSpec((8,), F32, 279269, steps=(3,), offset=1),),
        "x0[4 : x0.size(0) // 2 + 1 : 3]",
        "x0: x0[:-1].copy_(x0.flip(0)[:-1])",
        outputs=("v0",),
        dynamic=True,
    ),
    "a constant of a narrow type was compared as an int": program(
        (InputSpec((4, 1, 4, 4), torch.int8, 5476),), "torch.argmax(torch.ones_like(x0), 1, keepdim=True)"
    ),
    "a bfloat16 minimum was rounded, and the values that backward compares with it were not": program(
        (
            InputSpec((), torch.bfloat16, 94664, offset=1),
            InputSpec((), torch.bool, 59133),
            InputSpec((), torch.int16, 663472),
        ),
        "torch.prod(x0)",
        "torch.clamp(v0, min=v0)",
        "0.1 * v1",
        "torch.amin(v2)",
        "torch.where(x0.masked_fill(x1, 0) < x1, v3, x2)",
        "torch.pow(v4.abs() + 1, 0.5)",
        grad=True,
    ),
    "a view of an input that was copied to began where the copy did, not where the input does": program(
        (InputSpec((2,), I64, 892729, offset=1),), "x0: x0.copy_(x0)", "x0.expand((1, x0.size(0)))", dynamic=True
    ),
    "a view of an input that was written in part began at the start of its storage": program(
        (InputSpec((3,), F32, 308631, offset=1),), "x0.expand((x0.size(0),))", "x0: x0[:-1].zero_()", dynamic=True
    ),
    "as_strided into a clone looked into what was cloned, which begins elsewhere": program(
        (InputSpec((3, 7, 7), torch.int16, 302262, offset=5),),
        "x0.clone(memory_format=torch.contiguous_format)",
        "v0.as_strided((58, 2), (2, 1), 2)",
        "torch.sort(v1, dim=0, stable=True)[1]",
    ),
    "autograd's zeros have no memory, and a kernel read them": program(
        (InputSpec((6,), torch.float64, 314910), InputSpec((8, 5), torch.float16, 725214)),
        "torch.min(x0, 0)[0]",
        "torch.sgn(v0)",
        "torch.log_softmax(x0, 0)",
        "torch.log_softmax(x1, 1)",
        outputs=("v1", "v2"),
        grad=True,
    ),
    "repeat, as torch takes it apart, asked whether a size that comes from data is 0": program(
        (InputSpec((4, 3), F32, 5),), "torch.unique(x0)", "v0.repeat((2, 1)) + 1", by_dynamo=True
    ),
    "a position counted down from what a mask limits it to was not seen to lie inside": program(
        (InputSpec((1, 2), U8, 933763), InputSpec((1, 2), I64, 59526, "index", 8)),
        "torch.column_stack([x0.flip(1), x0.flip(1), x0, x0.to(torch.float32)])",
        "torch.gather(v0, 1, x1)",
    ),
    "an index into a dimension of size 1 was not checked where what it reads was computed in place": program(
        (InputSpec((1, 3), F32, 1), InputSpec((1,), I64, 1, "index", 64)),
        "x0 * 2",
        "v0[x1]",
        by_dynamo=True,
        raises=True,
    ),
    "the mask of a stack's halves is about a quotient of the index": program(
        (InputSpec((12, 7, 10), torch.int8, 37324), InputSpec((7,), I64, 687291, "index", 1680)),
        "torch.stack([x0, x0], 0)",
        "torch.take(v0, x1)",
    ),
    "that of a concatenation, about a remainder of two indices": program(
        (InputSpec((2, 2), F32, 1), InputSpec((2,), I64, 2, "index", 2), InputSpec((2,), I64, 3, "index", 2)),
        "torch.cat([x0, x0], 1)",
        "v0.as_strided((2, 2), (2, 1), 1)",
        "v1[x1, x2]",
    ),
    "a kernel read the first of no elements before a loop of none": program(
        (InputSpec((0,), torch.bfloat16, 813653), InputSpec((3, 0), F32, 1)),
        "torch.mean(x0.reshape((0, 1)), (0, 1))",
        "x1.reshape((3, 0, 1)).sum(1) + v0",
    ),
    "positions of one part of a joined tensor, in a loop over all parts": program(
        (InputSpec((1, 1, 1, 1), F32, 766646),),
        "torch.nn.functional.interpolate(x0, size=(5, 1))",
        "torch.dstack([v0, v0])",
    ),
    "those of three parts, of which one is rolled": program(
        (InputSpec((1, 1, 2, 2), torch.bfloat16, 793401),),
        "torch.nn.functional.pad(x0, (1, 1, 0, 1), 'reflect')",
        "torch.cat([v0, v0.roll(1, 2), v0], 2)",
    ),
    "an index that is a concatenation of what is computed": program(
        (InputSpec((9,), F32, 1),),
        "x0[torch.cat([torch.arange(5) * 2, 8 - torch.arange(5) * 2])]",
    ),
    "the windows of an image of a symbolic size are one fewer than its rows": program(
        (InputSpec((1, 1, 3, 3), torch.bfloat16, 169960),),
        "torch.nn.functional.fold(torch.nn.functional.unfold(x0, 2), x0.shape[-2:], 2)",
        dynamic=True,
    ),
    "the second element of a window was not known to lie behind the start of a symbolic size": program(
        (InputSpec((1, 2, 2, 2), F32, 779573),),
        "torch.nn.functional.interpolate(x0, size=(2, 5), mode='area')",
        dynamic=True,
    ),
    "a view of a complex input that was written began where the storage does": program(
        (InputSpec((2, 15, 2, 2), torch.complex64, 945192, steps=(3, 1, 1, 3), offset=5),),
        "x0.reshape((x0.size(0), x0.size(1) // 5, 5, x0.size(2), x0.size(2)))",
        "v0: v0[::2].fill_(2)",
        outputs=("v0",),
        dynamic=True,
    ),
    "windows of memory with gaps were taken for more elements than there are": program(
        (InputSpec((3, 5, 5), F32, 916879, steps=(1, 1, 2), order=(1, 0, 2)),),
        "torch.select_scatter(x0, x0.expand(x0.shape).select(0, 0).to(torch.float32), 0, -1)",
        "v0.unfold(1, 3, 2)",
    ),
    "the offsets of a bag of bfloat16 are none, whatever the fake kernel says": program(
        (InputSpec((1, 1), torch.bfloat16, 821301), InputSpec((1, 1), I64, 77069, "index", 1)),
        "torch.nn.functional.embedding_bag(x1.flatten(), x0, torch.arange(x1.size(0)) * x1.size(1), mode='sum')",
        grad=True,
    ),
    "a clamp that keeps a row inside was not seen where the sign of the row was simplified": program(
        (InputSpec((1, 1), torch.float64, 874615), InputSpec((1, 1), I64, 379241, "index", 1)),
        "torch.nn.functional.embedding(x1, x0, padding_idx=0)",
        grad=True,
    ),
    "-2 was not 254 as uint8": program((InputSpec((4, 4), U8, 766573),), "x0: x0.clamp_(-2, 2)"),
    "elements of an unfolded input that share memory are stored twice": program(
        (InputSpec((6, 2, 6), F32, 1, windows=True), InputSpec((6,), I64, 2, "index", 2), InputSpec((6, 6), F32, 3)),
        "x0.select(2, 3)",
        "v0: v0.index_add_(1, x1, x2)",
        outputs=("v0",),
    ),
    "a detached view of another result, which the judge's interpreter gave with that result's gradient": program(
        (InputSpec((4, 4), F32, 843843), InputSpec((4,), torch.bfloat16, 335879)),
        "torch.clamp(x0, min=x1)",
        "v0.split(3, 0)[-1]",
        "v1.detach()",
        outputs=("v2", "v0"),
        grad=True,
    ),
    "a conjugate view, which the judge's interpreter gave without its bit": program(
        (InputSpec((1, 1), F32, 4), InputSpec((1, 1), F32, 9)),
        "polar(turned(x0, x1).mT)",
        grad=True,
    ),
    "a position to the power of two, which the judge did not evaluate": program(
        (InputSpec((2,), U8, 899077),),
        "torch.arange(x0.size(0))",
        "v0: v0.mul_(v0)",
        outputs=("v0",),
    ),
}


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest) -> Sequence[Failure]:
    """What is wrong with any of the programs that this run asks for, whose kernels are built at once."""
    checker, names = Checker(), asked_for(request, __name__)
    found = checker.check_all([(FOUND[name], reference_of(FOUND[name])) for name in names])
    assert not checker.torch_failures, "each of the programs is one that torch captures"
    return found


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, failures: Sequence[Failure]) -> None:
    assert [f"{each.kind}: {each.message}" for each in failures if each.program is FOUND[name]] == []


def test_a_result_that_tracing_takes_for_expanded_and_is_not() -> None:
    """With a size that hangs on data, torch's fake select_scatter of an expanded tensor keeps stride 0: all rows were
    the first one."""

    def f(x: torch.Tensor, count: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found = torch.where(x < 0)[0]
        wide = found.expand((int(count.sum().item() % 4 + 1), *found.shape))
        return torch.select_scatter(wide, rows.expand(wide.shape).select(1, 0).to(torch.int64), 1, 0)

    args = torch.tensor([1, -1, -2, 3, -4]), torch.tensor([2.0]), torch.tensor([[1.0], [2.0], [3.0]])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        actual = torch.compile(f, backend="litz", dynamic=False)(*args)
    assert torch.equal(actual, f(*args)) and actual.stride() == f(*args).stride()


def test_an_index_into_a_flat_tensor_of_sizes_that_are_numbers_and_symbols() -> None:
    """litz refused the graph, although each index had been checked."""
    x = torch.randint(0, 9, (2, 9, 3))
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 1)

    def f(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.reshape(-1, 3)
        return x.flatten()[at], torch.take(x, at), rows.index_select(0, at), rows[at % 2], x.flatten().gather(0, at)

    at = torch.tensor([1, 0, 17])
    compiled = torch.compile(f, backend="litz", options={"debug": True})
    for actual, expected in zip(compiled(x, at), f(x, at), strict=True):
        assert torch.equal(actual, expected)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([18]))


def test_a_position_that_a_mask_keeps_inside() -> None:
    """litz refused both graphs: the first load happens nowhere, the second has the masked term twice in its index."""
    x = torch.arange(25).view(1, 5, 5)
    pad = torch.nn.functional.pad

    def nowhere(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return pad(x, (3, 3, 0, 1))[:, :, torch.arange(1) % 14]

    def twice(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return pad(x[:, :, 0:5:2], (1, -1), value=1).roll(1, 2)[:, :, at % 4]

    for function in (nowhere, twice):
        compiled = torch.compile(function, backend="litz", options={"debug": True})
        for at in (0, 1, 2):
            assert torch.equal(compiled(x, torch.tensor([at])), function(x, torch.tensor([at])))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([3]))


def test_what_is_read_nowhere_needs_no_check() -> None:
    """litz refused the graph under `debug`: its first element is never one of those that an index picks."""

    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([at, x[at]])
        return torch.remainder(joined, -joined.narrow(0, 0, 1).abs() - 1)

    torch._dynamo.reset()
    x, at = torch.randint(-9, 9, (5,)), torch.tensor([3])
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(f, backend="litz", options={"debug": True})
    assert torch.equal(compiled(x, at), f(x, at))
    with pytest.raises(IndexError):
        compiled(x, at + 2)


def test_what_eager_has_on_the_device_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """s56g:537 and 291: eager's softmax under autocast is float32 on a GPU, and attention lies otherwise there, where
    another statement of the program has no kernel."""
    checker = Checker(FuzzCompiler(compiled=False))
    statements = (Statement("v0", "x0 + 1"), Statement("v1", "x0.roll(1, 0)"))
    program = FuzzProgram((InputSpec((2, 3), torch.float32, 1),), statements, ("v0", "v1"))
    round_ = checker._round(program, reference_of(program), program.inputs)
    (value,) = (row.eager for row in round_.values if row.name == "v0")
    ran = list[FuzzProgram]()

    def on_device(
        alone: FuzzProgram, specs: object
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        ran.append(alone)
        if len(alone.statements) > 1:
            raise NotImplementedError("no kernel of the device")
        return [value.t().contiguous().t()], [], []

    monkeypatch.setattr(checker, "_run_eager", on_device)
    assert checker._has_device(program, round_, Complaint("v0", "strides", ""))
    assert not checker._has_device(program, round_, Complaint("v0", "type", ""))
    assert not checker._has_device(program, round_, Complaint("v0", "values", ""))
    assert not checker._has_device(program, round_, Complaint("x0", "strides", ""))
    assert [len(one.statements) for one in ran] == [1, 1, 2]


@pytest.mark.filterwarnings("ignore:litz leaves calls")
@pytest.mark.parametrize("written", ["x1.addcmul_(x0, x0, value=2)", "x1.addcmul_(x0, x0)"], ids=["copied", "itself"])
def test_what_dynamo_s_own_graph_accepts_is_no_fault_of_litz(written: str) -> None:
    """s61i:6473: dynamo makes the op in place one of a new result and a copy, which reads nothing that it writes. What
    it leaves as it is, litz refuses. AOTAutograd itself fails where it traces the result as a view of merged inputs."""
    inputs = (InputSpec((3,), F32, 1), InputSpec((3,), F32, 2))
    lines = (Statement("v0", "x1[0:-1:3]"), Statement("", written, writes="x1"))
    program = FuzzProgram(inputs, lines, ("v0",), by_dynamo=True, shift=2)
    assert reference_of(program, program.other_inputs["shared memory"]).raised is RuntimeError
    checker = Checker()
    assert checker.check(program) is None
    copied = "value" in written
    assert checker.torch_failures == ({"accepted before litz": 1} if copied else {})
    assert checker.runs["refused"] == (0 if copied else 2)


def test_a_kernel_that_is_compiled_late_is_built_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo compiles a graph again when a guard fails, which may be after the batch was built."""
    monkeypatch.setattr(FuzzCompiler, "finish", lambda self: None)
    program = FuzzProgram((InputSpec((3,), F32, 1),), (Statement("v0", "x0 * 2"),), ("v0",))
    checker = Checker()
    assert checker.check_all([(program, reference_of(program))]) == [] and checker.runs["compiled"] == 1


def test_a_number_of_python_s_may_become_a_tensor_s() -> None:
    """s75a:4713: AOTAutograd knows a tensor's `sub`, not `rsub`, and a square root then raises nothing."""
    uses = {"x0 - {}": (2, 0), "({}) - x0": (2, 0), "torch.clamp(x0, max={})": (0,)}
    for use, rows in ((use, rows) for use, sizes in uses.items() for rows in (2, 0)):
        root = Statement("v0", use.format("math.sqrt(x1.double().sum().item() - 100)"))
        given = InputSpec((rows, 1), F32, 1), InputSpec((2,), F32, 2)
        program = FuzzProgram(given, (root,), ("v0",), by_dynamo=True)
        assert reference_of(program).raised is ValueError
        checker = Checker()
        found = checker.check(program)
        assert found is None and ("accepted before litz" in checker.torch_failures) == (rows in uses[use])


def test_torch_s_own_error_does_not_hide_what_torch_accepts() -> None:
    """tf3:165: AOTAutograd drops a `select` that nothing reads. With `%` of an item torch 2.13 had no graph to ask."""
    for first in ("x0 * ((1 - x0.double().sum().item()) % 4)", "x0 * 2"):
        lines = Statement("v0", first, rough=True), Statement("", "x0.flatten()[(x1 | ~x1).sum().item() + 1]")
        given = InputSpec((1, 1), F32, 1), InputSpec((1, 1), torch.bool, 2)
        program = FuzzProgram(given, lines, ("v0",), by_dynamo=True, raises=True)
        checker = Checker()
        assert checker.check(program) is None and checker.torch_failures == {"accepted before litz": 1}


def test_strides_that_torch_promises_where_data_decide_a_size_are_torch_s() -> None:
    """s94h:78: torch's fake results lie otherwise than eager's, as they know no order of such sizes."""
    lines = "x0.nonzero()", "v0.view((2, v0.size(0) // 2, v0.size(1)))", "torch.remainder(x0, -v1.abs() - 1)"
    checker = Checker()
    assert checker.check(program((InputSpec((2, 2, 1, 1), F32, 271491),), *lines, by_dynamo=True)) is None
    assert list(checker.torch_failures) == ["strides: wrong before litz"]


def test_strides_that_torch_promises_are_found_where_one_of_an_input_is_a_size_of_its_own() -> None:
    """s106i:659: what torch's result says of a symbol is not what the symbol is, where the result lies otherwise."""
    spec = InputSpec((9, 9, 12), F32, 580361, order=(2, 0, 1), expanded=(1,))
    checker = Checker(FuzzCompiler(compiled=False))
    line = "torch.sub(x0, x0.narrow(0, 0, 1), alpha=3)"
    assert checker.check(program((spec,), line, dynamic=True)) is None
    assert list(checker.torch_failures) == ["strides: wrong before litz"]
