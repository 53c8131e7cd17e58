"""The fuzzer on a small budget, and the fuzzer itself: it must see what is wrong, and make it small."""

from __future__ import annotations

import copy
import inspect
import itertools
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz.capture import aot, torch_api
from litz.capture.graph import Graph
from litz_testing.fuzz import execute
from litz_testing.fuzz.check import Checker, _moved
from litz_testing.fuzz.compare import Expected, complaints
from litz_testing.fuzz.cpp_batch import CppBatch
from litz_testing.fuzz.execute import FuzzCompiler, trained
from litz_testing.fuzz.generate import RAISING, generate
from litz_testing.fuzz.inputs import SCALED, SCALES, InputSpec, in_one_memory, lie_apart_alike, make_inputs
from litz_testing.fuzz.operations import Draft, Draw, Row, load_table
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_testing.fuzz.reference import Raised, Reference, Rejected, reference_of
from litz_testing.fuzz.shrink import shrink

F32, F64 = torch.float32, torch.float64


ABOUT_MEMORY = pytest.mark.filterwarnings("ignore:litz leaves calls")


@ABOUT_MEMORY
@pytest.mark.parametrize(("seed", "count"), [("ci-c", 10), pytest.param("ci-d", 60, marks=pytest.mark.thorough)])
def test_random_programs_are_as_in_eager(seed: str, count: int) -> None:
    checker = Checker()
    failures = checker.check_all([generate(f"{seed}:{number}") for number in range(count)])
    assert not failures, "\n".join(f.program.script(f"{f.kind}: {f.message}") for f in failures)


def test_a_label_is_a_program() -> None:
    assert generate("same:7")[0] == generate("same:7")[0]
    assert generate("same:7")[0] != generate("same:8")[0]


def test_a_label_is_the_same_program_whichever_module_is_imported_first() -> None:
    code = (
        "import litz_testing.fuzz.views; from litz_testing.fuzz.generate import generate; print(generate('same:7')[0])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(generate("same:7")[0])


def test_dynamo_compiles_program_after_program() -> None:
    """Python finds the source of each program's function. Dynamo puts a function without source into one that all such
    functions share, which torch 2.11 compiles eight times: later programs, and their peers, ran as they are."""
    compiler = FuzzCompiler(compiled=False)
    for number in range(10):
        program = FuzzProgram(
            (InputSpec((3,), F32, number),), (Statement("v0", f"x0 * {number}"),), ("v0",), by_dynamo=True
        )
        assert inspect.getsource(program.function()) == program.source()
        inputs = make_inputs(program.inputs)
        executable = compiler.compile(program, inputs, "plain")
        assert len(executable.graphs) == 1
        with torch.no_grad():  # as the checker runs it
            assert torch.equal(executable.run(inputs, "traced")[0], inputs[0] * number) and len(executable.graphs) == 1
    compiler.forget()


def test_inputs_have_the_strides_and_values_of_their_spec() -> None:
    spec = InputSpec((2, 3), torch.bfloat16, 5, order=(1, 0), steps=(2, 1), offset=4)
    (value,), (double,) = make_inputs((spec,)), make_inputs((spec,), double=True)
    assert value.stride() == (2, 4) and value.storage_offset() == 4
    assert torch.equal(value.double(), double) and double.stride() == value.stride()
    (again,) = make_inputs((spec,))
    assert torch.equal(value, again)


def test_a_maker_that_eager_has_no_kernel_for_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """s52n:452: a number that is greater than 0, of float8."""

    def refuse(draw: Draw) -> Draft | None:
        raise NotImplementedError('"gt_cpu" not implemented')

    rows = [replace(row, maker=refuse) if row.kind == "raising" else row for row in load_table()]
    monkeypatch.setattr("litz_testing.fuzz.generate.load_table", lambda: rows)
    labels = (f"maker:{number}" for number in itertools.count())
    raising = next(label for label in labels if _draws_refusal(label))
    assert not generate(raising)[0].raises


def _draws_refusal(label: str) -> bool:
    rng = random.Random(label)
    _, grad, roll = rng.random(), rng.random() < 0.12, rng.random()
    return not grad and roll < RAISING


def test_a_result_that_is_no_tensor_is_of_the_wrong_type() -> None:
    """s52n:8718: torch's tracing raises where it compares complex numbers with a truth value of a size; Python then
    says False."""
    want = Expected("v0", *(torch.ones(2, dtype=torch.bool) for _ in range(3)))
    assert [str(c) for c in complaints([False], [want])] == ["v0: False for a tensor"]


def test_what_jumps_on_rounding_errors_is_rejected() -> None:
    program = FuzzProgram(
        (InputSpec((8,), F32, 1),),
        (Statement("v0", "torch.sin(x0)", rough=True), Statement("v1", "torch.floor(v0)", exact=True)),
        ("v1",),
    )
    with pytest.raises(Rejected):
        reference_of(program)


def test_complex_halves_are_rejected() -> None:
    program = FuzzProgram((InputSpec((4,), torch.float16, 1),), (Statement("v0", "torch.complex(x0, x0)"),), ("v0",))
    with pytest.raises(Rejected, match="complex32"):
        reference_of(program)


def test_writes_to_overlapping_elements_are_rejected() -> None:
    program = FuzzProgram(
        (InputSpec((8,), F32, 1),),
        (Statement("v0", "x0.unfold(0, 3, 1)"), Statement("", "v0.mul_(2)", writes="v0")),
        ("x0",),
    )
    with pytest.raises(Rejected):
        reference_of(program)


def test_strides_that_the_traced_graph_promises() -> None:
    """torch's fake tensors and its kernels disagree about these. litz does as eager, but for fmin of two types."""
    turned = InputSpec((1, 2, 2), F32, 1, order=(0, 2, 1))
    expanded = InputSpec((2, 2, 2, 2), F32, 2, order=(1, 2, 3, 0), expanded=(1,))
    halves = InputSpec((4, 1, 1, 3), torch.float16, 972944, order=(3, 0, 2, 1), steps=(2, 1, 2, 2))
    for inputs, text, excused in (
        ((turned,), "torch.div(x0, x0.narrow(1, 0, 1).abs() + 1, rounding_mode='floor')", {}),
        ((InputSpec((2, 2), F32, 1), expanded), "torch.logical_xor(x0, x1).chunk(2, 2)[0]", {}),
        ((InputSpec((3, 1, 3), torch.int64, 1), halves), "torch.fmin(x0, x1)", {"strides: wrong before litz": 1}),
    ):
        checker = Checker(FuzzCompiler(compiled=False))
        assert checker.check(FuzzProgram(inputs, (Statement("v0", text),), ("v0",))) is None
        assert checker.torch_failures == excused


def test_gradients_of_views_that_aotautograd_rebuilds(monkeypatch: pytest.MonkeyPatch) -> None:
    """s51c0:1258: the gradient through `as_strided` lies as the input does, that through `expand` as it comes. On a GPU
    inputs are no views; AOTAutograd rebuilds by `as_strided` what comes from kernels."""
    lines = (Statement("v0", "x0.expand(x0.shape)"), Statement("v1", "x1 * 2"))
    inputs = (InputSpec((2, 3, 4), F32, 1, order=(0, 2, 1)), InputSpec((3,), F32, 2))
    program = FuzzProgram(inputs, lines, ("v1", "v0"), dynamic=True, grad=True)
    checker = Checker(FuzzCompiler(compiled=False))
    monkeypatch.setattr(checker, "_inputs", lambda program, specs: trained(program, _moved(make_inputs(specs), "cpu")))
    assert checker.check(program) is None and checker.torch_failures == {"strides: wrong before litz": 1}


def test_values_that_come_of_strides_that_torch_promises_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fmin of two types fake tensors say other strides than the kernel gives, where as_strided reads on."""
    inputs = (
        InputSpec((3, 1, 3), torch.int64, 150100),
        InputSpec((4, 1, 1, 3), torch.float16, 972944, order=(3, 0, 2, 1), steps=(2, 1, 2, 2)),
    )
    lines = (Statement("v0", "torch.fmin(x0, x1)"), Statement("v1", "v0.as_strided((31, 2), (1, 0), 0)"))
    program, values = FuzzProgram(inputs, lines, ("v1",)), make_inputs(inputs)
    with FakeTensorMode() as mode:
        promised = torch.fmin(*map(mode.from_tensor, values)).stride()
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None
    kept = promised == torch.fmin(*values).stride()
    assert checker.torch_failures == ({} if kept else {"values: promised before litz": 1})

    # What a rule of litz's makes of a right promise is litz's.
    op = torch.ops.aten.repeat.default
    monkeypatch.setitem(checker.compiler.decompositions, op, torch_api.decomposition_registry()[op])
    lines = (Statement("v0", "x0.repeat((1, 2))"), Statement("v1", "v0.as_strided((1, 3), (2, 1), 1)"))
    failure = checker.check(FuzzProgram((InputSpec((4, 1), F32, 2, order=(1, 0)),), lines, ("v1",)))
    assert failure is not None and failure.kind == "interpreted: wrong values"


def test_what_torch_raises_as_well_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd replays the views of an input on the base of merged inputs; litz has it not do so."""
    monkeypatch.setattr("litz.capture.torch_api.rebuilt_outputs", frozenset)
    inputs = (InputSpec((1, 1), F32, 1), InputSpec((1, 1), F32, 1, alias="x0[::2]"))
    program = FuzzProgram(inputs, (Statement("", "x0.copy_(x0)", writes="x0"), Statement("v0", "x1[:, 2:2]")), ("v0",))
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None
    assert checker.torch_failures == {"IndexError before litz": 1}


@ABOUT_MEMORY
def test_what_torch_raises_when_it_is_called_again_is_no_failure() -> None:
    """AOTAutograd makes the result again by a view that eager makes as a copy; traced with the second inputs, whose
    storage is merged, AOTAutograd does not."""
    mask, x0 = InputSpec((1,), torch.bool, 217805), InputSpec((2, 2, 1), torch.uint8, 328414, steps=(2, 2, 2))
    x0 = replace(x0, order=(1, 0, 2), steps=(3, 1, 1))
    statements = (Statement("", "x0.masked_fill_(x1, 0)", writes="x0"), Statement("v0", "x0.unsqueeze(3).reshape(-1)"))
    program = FuzzProgram((x0, mask, replace(x0, seed=3)), statements, ("v0",), shift=1)
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None
    assert checker.torch_failures["RuntimeError before litz"] == 2 == len(checker.runs)


def test_what_litz_s_plugins_raise_is_no_fault_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of a joint graph runs in the middle of torch's capture; its errors were counted among torch's."""

    def broken(graph: Any) -> Any:
        raise ValueError("no such symbol")

    monkeypatch.setattr("litz_passes.joint.redundant_copies._redundant", broken)
    program = FuzzProgram((InputSpec((3,), F32, 1),), (Statement("v0", "x0.sin()"),), ("v0",), grad=True)
    failure = Checker(FuzzCompiler(compiled=False)).check(program)
    assert failure is not None and failure.kind == "compile: PluginHookError ValueError"


@pytest.mark.parametrize(("device", "excused"), [("cpu", False), ("cuda", True)])
def test_what_another_device_s_kernels_refuse_is_no_failure(
    device: str, excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """done40g:459: a bound on the CPU beside tensors on a GPU. AOTAutograd drops the call, as no result hangs on it;
    where inputs share memory litz leaves the program to torch, which runs the call and refuses it."""
    checker = Checker(FuzzCompiler(compiled=False))
    program = generate("same:7")[0]

    def run_peer(program: FuzzProgram, specs: Any, peer: Any, grads: bool, traced: Any) -> Any:
        if peer is None:
            raise RuntimeError("Expected all tensors to be on the same device")
        return [], [], []

    monkeypatch.setattr(checker, "device", device)
    monkeypatch.setattr(checker, "_run_peer", run_peer)
    calls = (program.inputs, program.inputs)
    assert checker._torch_raises(program, calls, RuntimeError("refused")) == excused
    assert not checker._torch_raises(program, calls, TypeError("another"))


def test_an_assertion_that_dynamo_made_while_it_captured_is_no_failure() -> None:
    """Of two rows `squeeze` makes a matrix, of one it makes a vector of two, for which the check holds as well."""
    texts = ("x0.nonzero()", "v0.squeeze()", "torch._check(v1.size(0) == 2)")
    statements = tuple(Statement(f"v{n}" if n < 2 else "", text, unsized=n < 2) for n, text in enumerate(texts))
    specs = [InputSpec((1, 4), torch.bool, seed) for seed in range(100)]
    of_rows = {int(make_inputs([spec])[0].sum()): spec for spec in specs}
    for rows, expected in ((2, {}), (1, {"RuntimeError before litz": 1})):
        checker = Checker(FuzzCompiler(compiled=False))
        spec, other = of_rows[2], of_rows[rows]
        program = FuzzProgram((spec,), statements, ("v0",), by_dynamo=True)
        prepared = checker._prepare(program, reference_of(program))
        again = replace(prepared, rounds=[checker._round(program, reference_of(program, (other,)), (other,))])
        assert checker._run(again, "interpreted") is None
        assert checker.torch_failures == expected
        # What else raises there is litz's own.
        assert not checker._torch_raises(program, ((other,), (spec,)), RuntimeError("g++ failed"))


def test_a_batch_is_one_run_of_the_compiler() -> None:
    """Also where its kernels define the same symbols of the assembler."""
    checker = Checker()
    for text in ("torch.sin(x0)", "torch.sin(x0) + 1"):
        program = FuzzProgram((InputSpec((40,), F32, 1),), (Statement("v0", text, rough=True),), ("v0",))
        checker._prepare(program, reference_of(program))
    checker.compiler.finish()
    batch = checker.compiler.batch
    assert (batch._builds, batch.kernels) == (1, 2)


def test_a_slow_compiler_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a batch are built once for all programs: the seconds that one program has are not for that."""
    checker, built = Checker(), threading.Event()

    def slow(batch: Any, build: Callable[[Any], None] = CppBatch.build) -> None:
        built.set() if signal.alarm(0) == 0 else pytest.fail("the build runs on a program's time")
        build(batch)

    monkeypatch.setattr(CppBatch, "build", slow)
    program = FuzzProgram((InputSpec((3,), F32, 1),), (Statement("v0", "x0 * 2"),), ("v0",), grad=True)
    assert checker.check_all([(program, reference_of(program))]) == [] and built.is_set()


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = execute._switch

    def broken(*args: object) -> object:
        call = real(*args)  # type: ignore[arg-type]
        return lambda values: [value + 1 for value in call(values)]

    monkeypatch.setattr(execute, "_switch", broken)
    program = FuzzProgram((InputSpec((4,), F32, 1),), (Statement("v0", "x0 * 2"),), ("v0",))
    failure = Checker(FuzzCompiler(compiled=False)).check(program)
    assert failure is not None and failure.kind == "interpreted: wrong values"


def test_what_eager_refuses_must_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost check of a size that data decide: the process goes on with a wrong one."""
    program = FuzzProgram(
        (InputSpec((8,), F32, 1),),
        (Statement("v0", "x0[x0 > 0]"), Statement("", "torch._check(v0.size(0) % 3 == 0)"), Statement("v2", "v0 * 2")),
        ("v2",),
        by_dynamo=True,
        raises=True,
    )
    assert reference_of(program).raised is RuntimeError

    def unchecked(graph: Graph, *rest: object) -> Callable[[list[Any]], Any]:
        module = copy.deepcopy(graph.module)
        for node in list(module.graph.nodes):
            if "assert" in str(node.target):
                module.graph.erase_node(node)
        return lambda values: torch.fx.Interpreter(module).run(*values, enable_io_processing=False)

    monkeypatch.setattr(execute, "_switch", unchecked)
    failure = Checker().check(program)
    assert failure is not None and failure.kind == "compiled: accepted"


@pytest.mark.parametrize("use", ["v0 * 2", "x0 + 1"])
def test_an_assertion_that_is_lost_in_capture_is_no_fault_of_torch(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared with litz is torch without litz's capture, and an assertion that dynamo captured must be kept
    even where AOTAutograd loses it, as torch 2.11's does if nothing else reads the size."""
    check = Statement("", "torch._check(v0.size(0) == 8)")
    statements = (Statement("v0", "x0[x0 > 0]"), check, Statement("v2", use))
    program = FuzzProgram((InputSpec((8,), F32, 1),), statements, ("v2",), by_dynamo=True, raises=True)
    real = execute.compile_with_aot

    def losing(module: torch.fx.GraphModule, *rest: Any, **named: Any) -> Callable[..., Any]:
        for node in [node for node in module.graph.nodes if "assert" in str(node.target)]:
            module.graph.erase_node(node)
        module.recompile()
        return real(module, *rest, **named)

    monkeypatch.setattr(execute, "compile_with_aot", losing)
    monkeypatch.setattr(execute, "_switch", lambda graph, *rest: execute._eager(graph))
    checker = Checker()
    failure = checker.check(program)
    assert failure is not None and failure.kind == "compiled: accepted" and not checker.torch_failures


@pytest.mark.parametrize(
    "statements",
    [
        (("v0", "x0[torch.where(x0 > 100)]"), ("", "torch._check(v0.size(0) == 8)"), ("v1", "x0 * 2")),
        (("v0", "x0[x0 > 100]"), ("v1", "v0.select(0, 0)")),
    ],
    ids=["check of a dead result", "select of nothing"],
)
def test_what_eager_refuses_litz_refuses(statements: tuple[tuple[str, str], ...]) -> None:
    made = tuple(Statement(*statement) for statement in statements)
    checker = Checker()
    assert checker.check(FuzzProgram((InputSpec((8,), F32, 1),), made, ("v1",), by_dynamo=True, raises=True)) is None
    assert checker.runs["refused"] == 2 and not checker.torch_failures  # interpreted and compiled


@ABOUT_MEMORY
def test_what_eager_refuses_and_no_assertion_says_may_be_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager does not write an input that overlaps with what is written into it, nor does litz; AOTAutograd's graph
    may."""
    inputs = (InputSpec((6,), F32, 1), InputSpec((6,), F32, 2, alias="x0[:]"))
    statements = (Statement("", "x0[1:].add_(x1[:-1])", writes="x0"), Statement("v1", "x0 + 1"))
    program = FuzzProgram(inputs, statements, ("v1",), by_dynamo=True)
    assert reference_of(program).raised is RuntimeError
    checker = Checker()
    assert checker.check(program) is None and not checker.torch_failures and checker.runs["refused"] == 4
    monkeypatch.setattr(aot, "reads_what_it_writes", lambda graph: "")
    assert checker.check(program) is None and "accepted before litz" in checker.torch_failures


def test_a_dead_number_of_python_s_may_go() -> None:
    """litz makes `full` of `full_like`; with its operand goes the root of a negative number, for torch as well."""
    limit = Statement("v0", "torch.clamp(x0, max=math.sqrt(x0.double().sum().item() - 100))")
    for last, dead in (("torch.full_like(v0, 3)", True), ("v0 + 1", False)):
        program = FuzzProgram((InputSpec((2,), F32, 1),), (limit, Statement("v1", last)), ("v1",), by_dynamo=True)
        assert reference_of(program).raised is ValueError
        checker = Checker()
        assert checker.check(program) is None and ("accepted before litz" in checker.torch_failures) == dead


def test_sizes_that_data_decide_change_from_call_to_call() -> None:
    program = FuzzProgram(
        (InputSpec((6, 7), torch.int8, 3),), (Statement("v0", "x0.nonzero() * 2"),), ("v0",), by_dynamo=True
    )
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None and checker.runs == {"interpreted": 2, "other data": 1}
    other = program.other_inputs["other data"]
    first, second = (reference_of(program, specs).eager["v0"] for specs in (program.inputs, other))
    assert first.shape != second.shape


@ABOUT_MEMORY
@pytest.mark.each_value
@pytest.mark.parametrize("by_dynamo", [False, True])
@pytest.mark.parametrize("shift", [0, 2])
def test_inputs_that_share_memory_only_when_called_again(
    shift: int, by_dynamo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is there without what looks at the inputs' addresses."""
    statements = (Statement("", "x0.mul_(2)", writes="x0"), Statement("v1", "x0 + x1"))
    inputs = (InputSpec((6,), F32, 1, steps=(2,), offset=1), InputSpec((6,), F32, 2))
    program = FuzzProgram(inputs, statements, ("v1",), shift=shift, by_dynamo=by_dynamo)
    checker = Checker(FuzzCompiler(compiled=False))
    together = replace(program, inputs=program.other_inputs["shared memory"])
    assert checker.check(program) is None and checker.runs["shared memory"] == 1
    assert checker.check(together) is None
    assert checker.runs["own memory"] == checker.runs["memory shared elsewhere"] == 1
    monkeypatch.setattr(aot, "respecting", lambda compiled, *rest: compiled)
    failure = checker.check(program)
    assert failure is not None and failure.kind == "interpreted: wrong values" and "shared memory" in failure.message
    assert checker.check(together) is not None
    values: dict[str, Any] = {}
    exec(failure.program.script().replace('backend="litz"', 'backend="eager"'), values)
    first, second = values["make_inputs"](), values["make_shared_memory"]()
    assert first[0].untyped_storage()._cdata != first[1].untyped_storage()._cdata
    assert second[0].untyped_storage()._cdata == second[1].untyped_storage()._cdata
    assert second[1].storage_offset() - second[0].storage_offset() == shift


@pytest.mark.ci_cases("2")
@pytest.mark.parametrize("others", [0, 2])
def test_what_torch_compiled_for_separate_inputs_may_be_wrong_for_parts_of_one(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTAutograd's graph gives other strides than eager's; its graph of parts of one tensor is another, and right.
    Where an element that is written is in two inputs nothing is excused by what torch does with separate ones. others:
    inputs that are only read, which may overlap (done40b:1049)."""
    strided = InputSpec((5, 5, 3), torch.int64, 240316, order=(2, 0, 1), steps=(3, 3, 3))
    inputs = (strided, InputSpec((5, 1, 1), torch.bool, 418978), replace(strided, seed=240317))
    inputs += (InputSpec((7,), torch.int8, 1), InputSpec((7,), torch.int8, 2))[:others]
    statements = (Statement("", "x0.masked_fill_(x1, 1)", writes="x0"), Statement("v1", "5 - x0"))
    program = FuzzProgram(inputs, (*statements, Statement("v2", "x2.clone()")), ("v1", "v2"), shift=5)
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None and checker.runs["shared memory"] == 1
    assert checker.torch_failures == {"strides: wrong before litz": 2}
    monkeypatch.setattr(aot, "respecting", lambda compiled, *rest: compiled)
    failure = checker.check(replace(program, shift=0))
    assert failure is not None and "shared memory" in failure.message


@pytest.mark.parametrize(("shift", "alike"), [(0, False), (1, True), (2, False), (7, True), (12, True)])
def test_inputs_that_have_elements_in_common(shift: int, alike: bool) -> None:
    """Rows of two dimensions in memory of one tensor; that of another type stays apart."""
    inputs = (InputSpec((6,), F32, 1, steps=(2,)), InputSpec((6,), F32, 2, steps=(2,)), InputSpec((6,), torch.int8, 3))
    assert lie_apart_alike(in_one_memory(inputs, shift), inputs) == alike
    assert not lie_apart_alike(inputs, inputs)
    assert lie_apart_alike(in_one_memory(inputs, shift), inputs, {2}), "inputs that are only read may overlap"
    assert lie_apart_alike(in_one_memory(inputs, shift), inputs, {0}) == alike


def test_programs_that_write_inputs_are_called_with_shared_memory() -> None:
    programs = [generate(f"meet:{number}", dynamic=False, grad=False)[0] for number in range(120)]
    meeting = [program.other_inputs for program in programs if program.shift is not None]
    assert len(meeting) > 5 and {what for others in meeting for what in others} >= {"shared memory", "own memory"}


@pytest.mark.parametrize("kind", ["plain", "data", "raising"])
def test_every_kind_of_statement_fits_somewhere(kind: str) -> None:
    """Of each row of the table, eager takes, or refuses where it should, what a few attempts make."""
    rng = random.Random(5)
    inputs = tuple(
        InputSpec(size, dtype, number)
        for number, (size, dtype) in enumerate(
            itertools.product([(3, 5), (4,)], [F32, torch.int64, torch.bool, torch.uint8, torch.complex64])
        )
    )
    for row in (row for row in load_table() if row.kind == kind):
        assert any(_fits(row, rng, inputs) for _ in range(60)), row.maker.__name__


def _fits(row: Row, rng: random.Random, inputs: tuple[InputSpec, ...]) -> bool:
    reference = Reference(inputs)
    draw = Draw(rng, reference, (3, 5), True, input_count=len(inputs))
    draft = row.maker(draw)
    if draft is None:
        return False
    for number, spec in enumerate(draw.new_inputs, len(inputs)):
        reference.add_input(f"x{number}", spec)
    target = "" if draft.writes or draft.effect else "v0"
    try:
        reference.step(Statement(target, draft.text, draft.writes, draft.exact, draft.rough))
    except Raised:
        return row.kind == "raising"
    except Rejected:
        return False
    return row.kind != "raising"


def test_negated_and_overlapping_inputs() -> None:
    negated, windows = InputSpec((3, 4), F32, 1, "negated", order=(1, 0)), InputSpec((3, 4), F32, 2, windows=True)
    (a, b), (c, d) = make_inputs((negated, windows)), make_inputs((negated, windows), double=True)
    assert a.is_neg() and a.stride() == (2, 6) and c.is_neg() and torch.equal(a.double(), c)
    assert b.stride() == (1, 1) and torch.equal(b[0, 1:], b[1, :-1]) and torch.equal(b.double(), d)


def test_a_failure_is_made_small() -> None:
    program, _ = generate("shrink:3", dynamic=False, grad=False)
    (first,) = {s.text for s in program.statements if s.target == "v0"}

    def fails(candidate: FuzzProgram) -> bool:
        reference_of(candidate)
        return any(s.text == first for s in candidate.statements)

    small = shrink(program, fails, seconds=10)
    assert [s.text for s in small.statements] == [first]


def test_a_script_stands_alone() -> None:
    program = FuzzProgram((InputSpec((4,), F32, 1),), (Statement("v0", "x0.add_(1)", writes="x0"),), ("x0",))
    script = program.script("a reason").replace('backend="litz"', 'backend="eager"')
    exec(script, {})  # in no name space of this file


def test_guards_hold_together() -> None:
    """take_along_dim fixes x0's size; unflatten's guard is an "or", which torch joins to the rest without parentheses:
    other sizes were then taken for accepted."""
    inputs = (
        InputSpec((6,), torch.int64, 1, "index", 6),
        InputSpec((7,), torch.int64, 2, "index", 6),
        InputSpec((4, 32), F32, 3),
    )
    program = FuzzProgram(
        inputs,
        (Statement("v0", "torch.take_along_dim(x0, x1, 0)"), Statement("v1", "x2.unflatten(1, (-1, 16))")),
        ("v0", "v1"),
        dynamic=True,
    )
    executable = FuzzCompiler(compiled=False).compile(program, make_inputs(inputs))
    assert executable.accepts(make_inputs(inputs))
    assert executable.accepts(make_inputs((*inputs[:2], InputSpec((5, 64), F32, 3))))
    assert not executable.accepts(make_inputs((InputSpec((26,), torch.int64, 1, "index", 6), *inputs[1:])))


def test_a_guard_that_divides_by_0_does_not_hold() -> None:
    """Pooling guards 5 % (s % 5) != 0: dynamo compiles anew where s is 5, and the fuzzer ended with an error."""
    inputs = (InputSpec((1, 2, 3, 4), F32, 1),)
    area = Statement("v0", "torch.nn.functional.interpolate(x0, size=(4, 5), mode='area')")
    program = FuzzProgram(inputs, (area,), ("v0",), dynamic=True)
    executable = FuzzCompiler(compiled=False).compile(program, make_inputs(inputs))
    assert executable.accepts(make_inputs(inputs))
    assert not executable.accepts(make_inputs((InputSpec((1, 2, 3, 5), F32, 1),)))


def test_what_eager_has_no_kernel_for_is_not_refused() -> None:
    """Eager says nothing about the index where it has no kernel for float8, and litz's error about it is right."""
    inputs = (InputSpec((1, 1), torch.float8_e4m3fn, 1), InputSpec((1,), torch.int64, 2, "index", 1))
    fill = Statement("v0", "torch.index_fill(x0, 1, x1 + 1, 1)")
    with pytest.raises(Rejected) as caught:
        reference_of(FuzzProgram(inputs, (fill,), ("v0",), by_dynamo=True, raises=True))
    assert not isinstance(caught.value, Raised)
    wide = (InputSpec((1, 1), F32, 1), inputs[1])
    assert reference_of(FuzzProgram(wide, (fill,), ("v0",), by_dynamo=True, raises=True)).raised is IndexError


def test_tiny_and_huge_numbers_are_among_the_inputs() -> None:
    specs = [spec for number in range(120) for spec in generate(f"scaled:{number}")[0].inputs]
    for kind, value in SCALES.items():
        found = [spec for spec in specs if spec.kind == kind]
        assert found and {spec.dtype for spec in found} <= SCALED
        (x,) = make_inputs((replace(found[0], alias=""),))
        assert bool((x.double() / value * 4).frac().eq(0).all()) and x.any()


def test_contractions_are_among_the_statements() -> None:
    """Programs store weights in 8 and 4 bits, attend with masks and bodies, and convolve with a bias."""
    programs = [generate(f"contracting:{number}")[0] for number in range(150)]
    texts = [statement.text for program in programs for statement in program.statements]
    assert any(".to(torch.float8" in text for text in texts)
    for what in ("& 15", "scaled_dot_product_attention", "flex_attention", "repeat_interleave", "conv2d", ".expand("):
        assert any(what in text for text in texts), what
    dtypes = {spec.dtype for program in programs for spec in program.inputs}
    assert {torch.float8_e4m3fn, torch.int8, torch.uint8} <= dtypes


@pytest.mark.parametrize("text", ["math.floor(x0.sum().item()) - x0", "torch.full((3,), int(x0.amax().item()))"])
def test_numbers_of_python_s_that_overflow_are_refusals(text: str) -> None:
    """s51n:5261: the data of a second call have an infinity, which Python refuses; the fuzzer's process ended."""
    program = FuzzProgram((InputSpec((2,), F64, 29, "special"),), (Statement("v0", text),), ("v0",), by_dynamo=True)
    again = reference_of(program, program.other_inputs["other data"])
    assert reference_of(program).raised is None and again.raised is OverflowError
    checker = Checker()
    assert checker.check(program) is None and not checker.torch_failures
    assert checker.runs["other data"] == 1 and checker.runs["refused"] == 2  # interpreted and compiled


def test_negated_and_conjugated_inputs_stay_so_on_another_device() -> None:
    x = torch.randn(6, dtype=torch.complex64)
    values = [x.conj(), x.conj().imag, x, x[2:]]
    moved = _moved(values, "cpu")
    assert all(torch.equal(there, value) for there, value in zip(moved, values, strict=True))
    assert moved[0].is_conj() and moved[1].is_neg()
    assert len({there.untyped_storage().data_ptr() for there in moved}) == 1
