"""Triton kernels of the user's: what becomes of them in a schedule, what they are compiled for, how they are launched.

No GPU: graphs are captured on the CPU and made out to be on a CUDA device, kernels run in Triton's interpreter and are
compiled for sm_90, and what a launch hands the driver is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from litz.cache.disk import Cache
from litz.capture.graph import Graph, make_graph
from litz.driver.builtin import builtin_plugins
from litz.driver.capturing import capture, decompositions
from litz.errors import FunctionPlaceError, KernelBuildError
from litz.execution import check_plan
from litz.ir import Extern, KernelCall, Loop, Program
from litz.ir.arguments import rebuild
from litz.ir.interpret import interpret
from litz.lower import core_lowerings, lower
from litz.pipeline import (
    Compiler,
    generate,
    generate_wrapper,
    make_compiler,
    plan_schedule,
    schedule_graph,
)
from litz.runtime import stored
from litz.schedule.schedule import Schedule
from litz.schedule.schedule_program import unscheduled
from litz.target import target_named
from litz.targets.triton.codegen import TritonCodegen
from litz_aot import torch_export
from litz_plugins import CodegenContext, Decision, KernelSource, make_plugins
from litz_triton_kernels import launch as user_kernels
from litz_triton_kernels.lowering import lowerings
from support.kernel_programs import cpu
from support.retarget import cuda_schedules, to_cuda
from support.triton_without_gpu import triton_for_h100
from support.user_kernels import CASES, SIZES, add_kernel, blocks, double_kernel, rows_kernel, tuned_kernel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def h100() -> Iterator[None]:
    with triton_for_h100():
        yield


def scheduled(
    run: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    decisions: list[Decision] | None = None,
    compiler: Compiler | None = None,
) -> tuple[Schedule, list[Any]]:
    """The schedule for a CUDA device, and what the graph was called with."""
    called: list[list[Any]] = []
    torch._dynamo.reset()

    def compiled(backend: Callable[..., Any]) -> None:
        torch.compile(run, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)

    (schedule,) = cuda_schedules(compiled, compiler, called=called, decisions=decisions, computed=True)
    return schedule, called[0]


def on_cpu(program: Program) -> Program:
    """The program, to be run in the interpreter of the IR: kernels of the user's run in Triton's."""

    def moved(value: Any) -> Any:
        return CPU if isinstance(value, torch.device) else value

    program = cpu(program)
    operations = (
        replace(op, args=rebuild(op.args, moved)) if isinstance(op, Extern) else op for op in program.operations
    )
    return replace(program, operations=tuple(operations))


def calls(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def sources(schedule: Schedule) -> Mapping[str, KernelSource]:
    compiler = make_compiler()
    plan = plan_schedule(schedule, compiler)
    check_plan(plan)
    return generate(plan, compiler)


@pytest.mark.each_value
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gives_what_torch_gives(name: str, dynamic: bool) -> None:
    case = CASES[name]
    for size in SIZES if name != "part-written" else SIZES[::2]:
        x, y = torch.randn(size), torch.randn(size)
        schedule, called = scheduled(case.run, x, y, dynamic=dynamic)
        assert len(calls(schedule)) == case.launches
        assert not any("triton_kernel_wrapper" in step.target_name for step in schedule.externs)
        for actual, expected in zip(interpret(on_cpu(unscheduled(schedule)), called), case.expected(x, y), strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.mark.each_value
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_for_all_that_a_launch_may_assume(name: str, dynamic: bool) -> None:
    schedule, _ = scheduled(CASES[name].run, torch.randn(30, 20), torch.randn(30, 20), dynamic=dynamic)
    for call in calls(schedule):
        source = call.source
        for special in (user_kernels.expected(source, schedule.program.hint), *user_kernels.general(source)):
            built = user_kernels.compile_user_kernel(source, 0, special)
            assert built.binary.cubin and len(built.passed) <= built.binary.parameters


# -------------------------------------------------------------------------------------------------------------- copies


def test_nothing_is_copied_that_nobody_needs() -> None:
    """`out` is fresh memory, and the product's result is read by the kernel alone."""
    schedule, _ = scheduled(CASES["chain"].run, torch.randn(30, 20), torch.randn(30, 20))
    stored = [store.buffer for loop in schedule.program.operations if isinstance(loop, Loop) for store in loop.stores]
    first, second = calls(schedule)
    assert first.outputs and not first.mutates and not second.outputs
    (product,) = (step for step in schedule.externs if step.target_name == "aten.mm.default")
    assert second.mutates == product.outputs and not {*first.writes, *second.writes} & set(stored)


def test_what_is_needed_is_copied() -> None:
    schedule, _ = scheduled(CASES["old-needed"].run, torch.randn(30, 20), torch.randn(30, 20))
    (call,) = calls(schedule)
    (product,) = (step for step in schedule.externs if step.target_name == "aten.mm.default")
    assert call.mutates and call.mutates != product.outputs


def test_a_target_without_the_ability_leaves_the_launch_to_triton() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        double_kernel[blocks(x.numel())](x, x.numel(), BLOCK=32)
        return x + 1

    compiler, target = make_compiler(), target_named("H100 SXM")
    compiler.targets[torch.device("cuda", 0)] = replace(target, abilities=target.abilities - {"user_kernels"})
    compile_run = lambda backend: torch.compile(run, backend=backend, fullgraph=True)(torch.randn(35))
    (schedule,) = cuda_schedules(compile_run, compiler, computed=True)
    assert not calls(schedule) and any(isinstance(step, Extern) for step in schedule.steps)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_are_written_where_they_lie(dynamic: bool) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        double_kernel[blocks(x.numel())](x, x.numel(), BLOCK=32)
        return y + 1

    x, decisions = torch.randn(5, 7), []
    kept = x.clone()
    schedule, called = scheduled(run, x, torch.randn(3), dynamic=dynamic, decisions=decisions)
    (call,) = calls(schedule)
    assert set(call.mutates) <= set(schedule.program.input_buffers) and len(call.mutates) == 1
    assert call.source.arguments[0] in call.mutates
    assert any(decision.chosen == "written in place" for decision in decisions)
    given = [kept if item is x else item for item in called]
    interpret(
        on_cpu(unscheduled(schedule)), [kept if isinstance(i, torch.Tensor) and i.shape == (5, 7) else i for i in given]
    )
    torch.testing.assert_close(kept, x)


def test_one_tensor_read_and_written() -> None:
    """A kernel that reads what it writes under another name sees the old values, as the graph says."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x @ y
        add_kernel[(1,)](z, z, z, z.numel(), BLOCK=64)
        return z

    x, y = torch.randn(4, 5), torch.randn(5, 6)
    schedule, called = scheduled(run, x, y)
    (actual,) = interpret(on_cpu(unscheduled(schedule)), called)
    torch.testing.assert_close(actual, 2 * (x @ y))


def test_a_graph_that_writes_in_place() -> None:
    """As it is before functionalization: what is written is what torch finds in the kernel."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x + y
        number = kernel_side_table.add_kernel(add_kernel)
        constants = kernel_side_table.add_constant_args({"n": 20, "BLOCK": 32})
        triton_kernel_wrapper_mutation(
            kernel_idx=number,
            constant_args_idx=constants,
            grid=[(1, 1, 1)],
            tma_descriptor_metadata={},
            kwargs={"x": x, "y": out, "out": out},
        )
        return out * 2

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    with torch.no_grad():
        module = make_fx(run, tracing_mode="fake")(x, y)
    program = lower(to_cuda(make_graph("test", module, "inference")), {**core_lowerings(), **lowerings()})
    (call,) = (op for op in program.operations if isinstance(op, KernelCall))
    assert len(call.mutates) == 1 and not call.outputs and call.mutates[0] in call.reads
    (actual,) = interpret(on_cpu(program), [x, y])
    torch.testing.assert_close(actual, (x + x + y) * 2)
    core = lower(to_cuda(make_graph("test", module, "inference")))  # eager's call: nobody knows what it writes
    (call,) = (op for op in core.operations if isinstance(op, Extern))
    assert set(call.mutates) == set(call.reads) and len(call.reads) == 2 and call.effect
    (actual,) = interpret(on_cpu(core), [x, y])
    torch.testing.assert_close(actual, (x + x + y) * 2)


# ---------------------------------------------------------------------------------------------------------- arguments


def test_strided_arguments_are_passed_as_they_lie() -> None:
    """The pointer of a part has its offset; a transposed tensor is not copied."""
    schedule, _ = scheduled(CASES["strided"].run, torch.randn(30, 20), torch.randn(30, 20))
    first, second = calls(schedule)
    texts = {name: text for name, kind, text, *_ in first.source.settings["parameters"]}
    assert texts["x"] == "(a0 + 88)" and texts["bias"].endswith(" + 8)")  # 22 and 2 elements of 4 bytes
    assert not any(name == "bias" for name, *_ in second.source.settings["parameters"])
    assert len(schedule.kernels) == 1  # the zeros
    built = user_kernels.compile_user_kernel(
        first.source, 0, user_kernels.expected(first.source, schedule.program.hint)
    )
    assert ("fp32", str(user_kernels.bits(0.5, "fp32"))) in built.passed
    assert len(built.passed) == len(first.source.settings["parameters"]) - 1  # a step of 1 is a constant to Triton


def test_offsets_decide_what_is_aligned() -> None:
    schedule, _ = scheduled(CASES["strided"].run, torch.randn(30, 20), torch.randn(30, 20))
    special = user_kernels.expected(calls(schedule)[0].source, schedule.program.hint)
    assert special == ("", "16", "")  # 88 bytes, 0 and 8


@pytest.mark.parametrize(
    ("number", "kind"),
    [(1, "1"), (0, "16"), (16, "16"), (7, ""), (-3, ""), (2**31 - 1, ""), (2**31, "wide16"), (2**40 + 1, "wide")],
)
def test_kinds_of_numbers(number: int, kind: str) -> None:
    assert user_kernels.kind_of(number) == kind


def test_bits_of_numbers() -> None:
    assert user_kernels.bits(1.0, "fp32") == 0x3F800000 and user_kernels.bits(-2.0, "fp16") == 0xC000
    assert user_kernels.bits(1.0, "bf16") == 0x3F80 and user_kernels.bits(1.0, "fp64") == 0x3FF0000000000000
    assert user_kernels.bits(True, "u1") == 1 and user_kernels.bits(-5, "i32") == -5


# ---------------------------------------------------------------------------------------------------------- by Triton


def test_what_only_triton_launches_is_a_call_of_triton() -> None:
    @triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_ctas=2)], key=[])
    @triton.jit
    def clustered(x, n, BLOCK: tl.constexpr):
        offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + offset, tl.load(x + offset, offset < n) + 1, offset < n)

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x @ y
        clustered[blocks(z.numel())](z, z.numel())
        return z * 2

    x, y = torch.randn(4, 5), torch.randn(5, 6)
    schedule, called = scheduled(run, x, y)
    (call,) = (step for step in schedule.externs if step.mutates)
    assert not isinstance(call, KernelCall) and call.target_name == "clustered"
    (actual,) = interpret(on_cpu(unscheduled(schedule)), called)
    torch.testing.assert_close(actual, 2 * (x @ y + 1))
    with pytest.raises(FunctionPlaceError, match=r"Triton's own launch of clustered"):
        stored.path_of(call.target)


def test_descriptors_made_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton makes and launches; which tensor is read and which written is known."""
    descriptors = pytest.importorskip("triton.tools.tensor_descriptor")
    monkeypatch.setattr(torch.utils._triton, "has_triton_tensor_descriptor_host_tma", lambda: True)

    @triton.jit
    def copied(rows, out, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
        tl.store(out + at * 16 + tl.arange(0, 16)[None, :], rows.load([tl.program_id(0) * BLOCK, 0]))

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        out = torch.empty_like(x)
        copied[(2,)](descriptors.TensorDescriptor.from_tensor(x, [32, 16]), out, BLOCK=32)
        return out * 2

    x = torch.randn(64, 16)
    schedule, called = scheduled(run, x)
    (call,) = (step for step in schedule.externs if step.target_name == "copied")
    assert not isinstance(call, KernelCall) and not call.mutates and len(call.reads) == 1 and len(call.outputs) == 1
    (actual,) = interpret(on_cpu(unscheduled(schedule)), called)
    torch.testing.assert_close(actual, 2 * (x + 1))


@pytest.mark.each_value
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_without_the_plugin_it_is_eagers_call(name: str, dynamic: bool) -> None:
    case, core = CASES[name], make_compiler(plugins=make_plugins(builtin_plugins(), entry_points=()))
    x, y = torch.randn(SIZES[0]), torch.randn(SIZES[0])
    schedule, called = scheduled(case.run, x, y, dynamic=dynamic, compiler=core)
    launches = [step for step in schedule.externs if step.target_name == "triton_kernel_wrapper_functional"]
    assert len(launches) == case.launches and not calls(schedule)
    for actual, expected in zip(interpret(on_cpu(unscheduled(schedule)), called), case.expected(x, y), strict=True):
        torch.testing.assert_close(actual, expected)
    plan = plan_schedule(schedule, core)
    assert "triton_kernel_wrapper" in generate_wrapper(plan, generate(plan, core)).text
    with pytest.raises(FunctionPlaceError, match=r"has no name in a module"):  # the call's numbers are this process's
        stored.path_of(launches[0].target)


def test_a_tensor_on_the_cpu_is_left_to_eager() -> None:
    """Triton says what it thinks of it."""
    compiler, found = make_compiler(), list[Schedule]()

    def keep(graph: Graph) -> Callable[[list[Any]], Any]:
        found.append(schedule_graph(graph, compiler))
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    torch.compile(CASES["heuristic"].run, backend=partial(capture, compile_graph=keep, compiler=compiler))(x, y)
    assert [step.target_name for step in found[0].externs] == ["triton_kernel_wrapper_functional"]


def test_an_exported_op_is_its_kernels() -> None:
    """So that a process that loads a package need not have the op."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return CASES["op"].run(x, y)

    inputs = (torch.randn(4, 5), torch.randn(4, 5))
    with torch.no_grad():
        program = torch_export.export(Model(), inputs, {}, None)
        module = torch_export.decomposed(program, decompositions(make_compiler())).module
    program = lower(to_cuda(make_graph("test", module, "inference")), {**core_lowerings(), **lowerings()})
    assert [op.target_name for op in program.operations if isinstance(op, Extern)] == ["add_kernel"]


# ------------------------------------------------------------------------------------------------------------ launches


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """(kernel, grid, values) of each launch."""
    found: list[tuple[Any, ...]] = []

    def make_launch(function: Any, native: Any) -> Callable[..., None]:
        return lambda grid, *values: found.append((function, grid, values))

    monkeypatch.setattr(user_kernels.cuda_driver, "load_function", lambda *facts: SimpleNamespace(arguments=facts[5]))
    monkeypatch.setattr(user_kernels.cuda_driver, "make_launch", make_launch)
    return found


def launcher(source: KernelSource) -> user_kernels.UserLauncher:
    return user_kernels.UserLauncher(
        source, 0, lambda config, special: user_kernels.compile_user_kernel(source, config, special)
    )


def test_launches_with_grid_pointers_and_numbers(launched: list[Any]) -> None:
    schedule, _ = scheduled(CASES["chain"].run, torch.randn(30, 20), torch.randn(30, 20))
    launcher(calls(schedule)[0].source).function(1 << 12, 1 << 13, 1 << 14)
    ((function, grid, values),) = launched
    assert grid == (5, 1, 1) and values == (1 << 12, 1 << 13, 1 << 14, 600) and function.arguments == 4


@pytest.mark.parametrize("name", ["chain", "tuned", "op"])
def test_the_code_generator_loads_it(name: str, launched: list[Any], tmp_path: Path) -> None:
    """What a compile calls, with what the likely sizes ask for compiled by then."""
    schedule, _ = scheduled(CASES[name].run, torch.randn(30, 20), torch.randn(30, 20))
    source, compiler = calls(schedule)[0].source, make_compiler()
    target = replace(target_named("H100"), index=0)
    context = CodegenContext(compiler.options, target, schedule.program, Cache(tmp_path))
    function = TritonCodegen().load(source, context)
    assert not launched
    if len(source.settings["grids"]) == 1:
        function(*range(4096, 4096 + 16 * len(source.arguments), 16))
        assert len(launched) == 1


def test_launches_by_the_sizes_of_a_call(launched: list[Any]) -> None:
    schedule, _ = scheduled(CASES["chain"].run, torch.randn(30, 20), torch.randn(30, 20), dynamic=True)
    source = calls(schedule)[0].source
    own = launcher(source)
    for n in (600, 1, 16, 2**40, 0):
        own.function(4096, 4096, 4100, n, -(-n // 128))
    assert [grid for _, grid, _ in launched] == [(5, 1, 1), (1, 1, 1), (1, 1, 1), (2**33, 1, 1)]  # nothing for nothing
    assert [values[3:] for _, _, values in launched] == [(600,), (), (16,), (2**40,)]
    specials = [special for _, special in own.entries]
    assert specials[0] == ("16", "16", "", "") and [s[3] for s in specials] == ["", "1", "16", "wide16"]


def test_the_fastest_configuration_is_measured_once_a_key(launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """On memory that has its old values afterwards."""
    schedule, _ = scheduled(CASES["tuned"].run, torch.randn(30, 20), torch.randn(30, 20), dynamic=True)
    (call,) = calls(schedule)
    memory = torch.arange(900.0)
    asked: list[int] = []

    def seconds(run: Callable[[], None]) -> float:
        run()
        memory.add_(1)
        asked.append(launched[-1][1][0])
        return {29: 2.0, 8: 1.0}.get(launched[-1][1][0], 1.0 + len(asked))

    monkeypatch.setattr(user_kernels, "_seconds", seconds)
    monkeypatch.setattr(user_kernels, "_memory", lambda address, nbytes, device: memory.view(torch.uint8)[:nbytes])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    own = launcher(call.source)
    before = memory.clone()
    own.function(4096, 900, 29, 8, 3600)
    assert asked == [29, 8] and launched[-1][1] == (8, 1, 1) and torch.equal(memory, before)
    own.function(4096, 900, 29, 8, 3600)
    assert asked == [29, 8] and launched[-1][1] == (8, 1, 1)
    own.function(4096, 64, 2, 1, 256)  # another key
    assert asked == [29, 8, 2, 1] and launched[-1][1] == (2, 1, 1)


def test_a_recording_measures_nothing(launched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, _ = scheduled(CASES["tuned"].run, torch.randn(30, 20), torch.randn(30, 20))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    own = launcher(calls(schedule)[0].source)
    own.function(4096, *([3600] * (len(own.source.arguments) - 1)))
    assert launched[-1][1] == (29, 1, 1) and not own.chosen


def test_the_wrapper_launches_it_by_addresses() -> None:
    schedule, _ = scheduled(CASES["chain"].run, torch.randn(30, 20), torch.randn(30, 20), dynamic=True)
    compiler = make_compiler()
    plan = plan_schedule(schedule, compiler)
    text = generate_wrapper(plan, generate(plan, compiler)).text
    first, _ = calls(schedule)
    launch = next(line for line in text.splitlines() if line.strip().startswith(f"{first.name}("))
    assert ".data_ptr()" in launch and "// 128" in launch
    assert "triton_kernel_wrapper" not in text.replace("# triton_kernel_wrapper", "").split("#")[0]


# ------------------------------------------------------------------------------------------------------------ packages


@pytest.mark.parametrize("name", ["chain", "tuned", "strided"])
def test_a_package_has_what_a_launch_needs(name: str, launched: list[Any], tmp_path: Path) -> None:
    schedule, _ = scheduled(CASES[name].run, torch.randn(30, 20), torch.randn(30, 20), dynamic=True)
    source = calls(schedule)[-1].source
    known, files = user_kernels.packed(
        source, schedule.program.hint, lambda *what: user_kernels.compile_user_kernel(source, *what)
    )
    data = json.loads(json.dumps(known))
    bare = replace(source, text="", settings=json.loads(json.dumps(dict(source.settings))))
    provide = user_kernels.unpacked(bare, data, files.__getitem__)
    expected = user_kernels.expected(source, schedule.program.hint)
    assert provide(0, expected).passed == user_kernels.compile_user_kernel(source, 0, expected).passed
    others = tuple("wide" if item != "16" else item for item in expected)
    assert provide(0, others).binary.cubin
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    function = user_kernels.unpack(bare, {path.name: path for path in tmp_path.iterdir()}, data)
    if len(source.settings["grids"]) == 1:
        function(*range(4096, 4096 + 16 * len(source.arguments), 16))
        assert launched


def test_a_kernel_that_does_not_compile_is_an_error() -> None:
    @triton.jit
    def wrong(x, n, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), no_such_name)  # noqa: F821

    def run(x: torch.Tensor) -> torch.Tensor:
        z = x + 1
        wrong[(1,)](z, 3, BLOCK=16)
        return z

    found: list[Schedule] = []
    with pytest.raises(Exception):  # noqa: B017  (in the interpreter, once it is scheduled)
        found.append(scheduled(run, torch.randn(16))[0])
    source = _captured(run, torch.randn(16))
    with pytest.raises(KernelBuildError, match="no_such_name"):
        user_kernels.compile_user_kernel(source, 0, user_kernels.general(source)[0])


def _captured(run: Callable[..., Any], *inputs: Any) -> KernelSource:
    """The source of a function's one kernel, whatever running it does."""
    found: list[Schedule] = []

    def compiled(backend: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        try:
            torch.compile(run, backend=backend, fullgraph=True)(*inputs)
        except Exception:  # the interpreter's
            return

    found = cuda_schedules(compiled)
    return calls(found[0])[0].source


def test_kernels_of_the_support_are_what_they_say() -> None:
    """In the interpreter, against torch: so that a wrong kernel is not taken for a wrong launch."""
    x = torch.randn(7)
    y = x.clone()
    tuned_kernel[(1,)](y, 7)
    torch.testing.assert_close(y, x + 1)
    out = torch.empty(2, 3)
    rows_kernel[(2, 1)](x, out, None, 2.0, 2, 3, 3, 1, 3, FLIP=True, BLOCK=4)
    torch.testing.assert_close(out, 2 * x[:6].view(2, 3).flip(0))
