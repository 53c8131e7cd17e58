"""The walk over the FX graph: inputs, outputs, mutations, constants, sizes, library calls, errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.lowering.harness import capture
from litz.driver.builtin import builtin_plugins
from litz.errors import LoweringError
from litz.ir import Collective, Template, TensorRef, Wait
from litz.ir.interpret import interpret
from litz.ir.verify import verify
from litz.lower import Tensor, core_lowerings, lower
from litz_plugins import PluginHookError, hookimpl, make_plugins
from operators.harness import check, program_of

aten = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6)

# ---- outputs


def test_inputs_and_views_are_returned_without_a_copy() -> None:
    program = check(lambda x, y: (x, x.t(), y, x, x[1:, ::2]), X, X + 1)
    assert not program.operations
    assert program.outputs[0] == program.outputs[3]


def test_numbers_and_none() -> None:
    program = program_of(lambda x: (x + 1, 3), X)
    assert program.outputs[1] == 3


def test_outputs_that_no_stride_can_express_are_copied() -> None:
    program = check(lambda x: (x.flip(1), x.unfold(1, 2, 1), torch.ones(3, 1).expand(3, 4)), X)
    assert len(program.loops) == 2


def test_one_buffer_behind_two_outputs() -> None:
    program = check(lambda x: (x.exp(), x.exp().t()), X)
    y = program_of(lambda x: (lambda y: (y, y.t()))(x.exp()), X).outputs
    assert isinstance(y[0], TensorRef) and isinstance(y[1], TensorRef) and y[0].buffer == y[1].buffer
    assert program.output_buffers


# ---- inputs that are written


def swap(x: torch.Tensor, y: torch.Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    y.mul_(x)
    return x - y


def written_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = x.flip(0)
    x[1:3] = y[:2] * 2
    return old


def transposed_into_itself(x: torch.Tensor, y: torch.Tensor) -> None:
    x[:, :4].copy_(x[:, :4].t().clone())


@pytest.mark.parametrize("function", [swap, in_place, written_part, transposed_into_itself])
@pytest.mark.parametrize("dynamic", [False, True])
def test_mutation(function: Any, dynamic: bool) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (function(x, y), x + 0)[1:]

    check(call, X.clone(), X + 1, dynamic=dynamic)


def aot_graph(module: torch.fx.GraphModule) -> Any:
    from litz.capture.graph import make_graph

    return make_graph("test", module, "inference")


def handmade(build: Any, *inputs: torch.Tensor) -> Any:
    """A graph with what `build(graph, *placeholders)` returns as outputs, with fake metadata."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    graph = torch.fx.Graph()
    holders = [graph.placeholder(f"x{number}") for number in range(len(inputs))]
    graph.output(tuple(build(graph, *holders)))
    mode = FakeTensorMode()
    values: dict[torch.fx.Node, Any] = {}
    for node, value in zip(holders, inputs, strict=True):
        values[node] = node.meta["val"] = mode.from_tensor(value)
    with mode:
        for node in graph.nodes:
            if node.op == "call_function":
                args = torch.fx.node.map_arg(node.args, lambda n: values[n])
                values[node] = node.meta["val"] = node.target(*args, **node.kwargs)
    return aot_graph(torch.fx.GraphModule({}, graph))


def test_a_lazy_copy_is_made_before_its_source_is_written() -> None:
    """flip copies in eager and is a view here: what it reads may not change under it."""

    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> list[torch.fx.Node]:
        flipped = graph.call_function(aten.flip.default, (x, [0]))
        more = graph.call_function(aten.add.Tensor, (x, 1))
        graph.call_function(aten.copy_.default, (x, more))
        return [flipped]

    program = lower(handmade(build, X))
    verify(program)
    x = X.clone()
    (result,) = interpret(program, [x])
    torch.testing.assert_close(result, X.flip(0))
    torch.testing.assert_close(x, X + 1)


def test_a_copy_of_the_input_onto_itself() -> None:
    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> list[torch.fx.Node]:
        rows = graph.call_function(aten.slice.Tensor, (x, 1, 0, 4))
        turned = graph.call_function(aten.permute.default, (rows, [1, 0]))
        graph.call_function(aten.copy_.default, (rows, turned))
        graph.call_function(aten.copy_.default, (x, x))
        return []

    program = lower(handmade(build, X))
    x = X.clone()
    interpret(program, [x])
    torch.testing.assert_close(x[:, :4], X[:, :4].t())
    assert len(program.loops) == 2


def test_the_order_of_writes_and_reads() -> None:
    def build(graph: torch.fx.Graph, x: torch.fx.Node, y: torch.fx.Node) -> list[torch.fx.Node]:
        old = graph.call_function(aten.clone.default, (x,))
        graph.call_function(aten.copy_.default, (x, y))
        graph.call_function(aten.copy_.default, (y, old))
        return []

    x, y = X.clone(), X + 100
    interpret(lower(handmade(build, X, X + 100)), [x, y])
    torch.testing.assert_close((x, y), (X + 100, X))


# ---- sizes


def test_size_arithmetic() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        n = x.shape[0] * y.shape[1] // 2
        return x.reshape(-1)[:n] * n, torch.full((n + 1,), 1.5)

    check(function, torch.randn(4, 6), torch.randn(3, 10), dynamic=True)


def test_a_size_is_returned() -> None:
    program = program_of(lambda x: (x.shape[0] * 2, x * 2), torch.randn(5, 3), dynamic=True)
    outputs = interpret(program, [torch.randn(5, 3)])
    assert outputs[0] == 10


def test_sizes_known_at_run_time_only() -> None:
    program = check(lambda x: x.nonzero() * 2, (X % 3 == 0).float(), native=False)
    assert any(extern.unbacked for extern in program.externs)
    check(lambda x: (x[x > 3] + 1).sum(), X, native=False)


def test_item() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.item()
        torch._check(n >= 2)
        torch._check(n <= 6)
        return y[:n] * n + torch.arange(n)

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        fakes = [mode.from_tensor(torch.tensor(3)), mode.from_tensor(torch.randn(6))]
    module = make_fx(function, tracing_mode="fake")(*fakes)
    program = lower(aot_graph(module))
    y = torch.randn(6)
    torch.testing.assert_close(interpret(program, [torch.tensor(4), y])[0], function(torch.tensor(4), y))


# ---- library calls


def test_contractions_take_views_as_they_are() -> None:
    x, w, b = torch.randn(5, 6), torch.randn(8, 6), torch.randn(8)
    program = check(lambda x, w, b: (x @ w.t(), torch.addmm(b, x, w.t(), alpha=0.5)), x, w, b, native=False)
    assert [operation.kind for operation in program.operations if isinstance(operation, Template)] == ["mm", "addmm"]
    assert not program.loops


@pytest.mark.parametrize("dynamic", [False, True])
def test_batched_contractions(dynamic: bool) -> None:
    x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)
    check(lambda x, y: x @ y.transpose(-1, -2), x, y, native=False, dynamic=dynamic)
    check(lambda x, y: torch.baddbmm(x[0], x[0], y[0, :, :5], beta=0.5), x, y, native=False, dynamic=dynamic)
    check(lambda x: torch.mm(x[:, ::2], x[:, 1::2].t()), torch.randn(4, 8), native=False, dynamic=dynamic)


def test_convolution_in_channels_last() -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    program = check(
        lambda x, w: torch.relu(torch.conv2d(x.sin(), w, padding=1)), x, w, native=False, rtol=1e-4, atol=1e-4
    )
    assert any(isinstance(operation, Template) and operation.kind == "convolution" for operation in program.operations)


def test_what_has_no_lowering_is_called() -> None:
    program = check(lambda x: torch.linalg.qr(x.t())[1].abs(), X, native=False)
    assert program.externs
    check(lambda x: torch.special.i0(x.flip(0)), X, native=False)


def test_arguments_of_calls_lie_as_in_eager() -> None:
    program = check(lambda x: torch.special.i0(x.flip(0).t()), X, native=False)
    (ref,) = program.externs[0].refs
    assert tuple(map(int, ref.layout.stride)) == (1, 6)


def test_random_ops_keep_their_order() -> None:
    program = program_of(lambda x: aten.multinomial(x.abs() + 1, 2), X)
    assert any(extern.effect for extern in program.externs)


def test_a_custom_op_that_writes_its_argument() -> None:
    library = torch.library.Library("litz_test", "FRAGMENT")
    library.define("scale_(Tensor(a!) x, float by) -> Tensor")
    library.impl("scale_", lambda x, by: x.mul_(by).sum(), "CompositeExplicitAutograd")
    library.impl("scale_", lambda x, by: x.new_empty(()), "Meta")

    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> list[torch.fx.Node]:
        total = graph.call_function(torch.ops.litz_test.scale_.default, (x, 2.0))
        return [total, graph.call_function(aten.add.Tensor, (x, 1))]

    program = lower(handmade(build, X))
    verify(program)
    assert program.externs[0].mutates == ("x0",)
    x = X.clone()
    total, after = interpret(program, [x])
    torch.testing.assert_close(x, X * 2)
    torch.testing.assert_close(after, X * 2 + 1)
    torch.testing.assert_close(total, (X * 2).sum())


def test_a_condition_calls_its_branches() -> None:
    graph = None

    def function(p: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def keep(module: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal graph
        graph = aot_graph(module)
        return module.forward

    from functorch.compile import aot_module_simplified

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(module, inputs, fw_compiler=keep)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True)(torch.tensor(True), X)
    assert graph is not None
    program = lower(graph)
    verify(program)
    assert program.externs[0].target_name == "cond"
    for flag, wanted in ((True, X.sin()), (False, X.cos())):
        values = {1: torch.tensor(flag), 24: X}
        args = [values[int(program.buffers[name].layout.numel)] for name in program.input_buffers]
        torch.testing.assert_close(interpret(program, args)[0], wanted)


def test_collectives() -> None:
    functional = torch.ops._c10d_functional

    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> list[torch.fx.Node]:
        started = graph.call_function(functional.all_reduce.default, (x, "sum", "0"))
        return [graph.call_function(functional.wait_tensor.default, (started,))]

    pytest.importorskip("torch.distributed._functional_collectives")
    program = lower(handmade(build, X))
    started, waited = program.operations
    assert isinstance(started, Collective) and started.group == "0" and started.effect
    assert isinstance(waited, Wait) and list(waited.aliases.values()) == [started.outputs[0]]


# ---- constants, errors, plugins


def test_constants() -> None:
    table = torch.arange(6.0)
    program = check(lambda x: x + table, X)
    assert len(program.constants) == 1
    program = check(lambda x: x * torch.tensor(2.5), X)
    assert not program.constants


def test_an_error_names_op_and_node() -> None:
    def broken(ctx: Any, x: Any) -> Any:
        raise ValueError("no idea")

    with pytest.raises(LoweringError, match=r"aten\.sin\.default.*no idea") as caught:
        lower(capture(torch.sin, X), {**core_lowerings(), aten.sin.default: broken})
    assert caught.value.node == "sin"


def test_a_lowering_that_gives_up_leaves_nothing_behind() -> None:
    def unsure(ctx: Any, x: Any) -> Any:
        ctx.realize(x, tuple(reversed(x.size)))
        ctx.copy(x)
        raise NotImplementedError

    program = lower(capture(torch.sin, X), {**core_lowerings(), aten.sin.default: unsure})
    verify(program)
    assert [operation.name for operation in program.operations] == ["op0"]
    assert len(program.buffers) == 2 and program.externs


def test_a_plugin_replaces_a_lowering() -> None:
    def double(ctx: Any, x: Any) -> Any:
        from litz.ir.build import call, const

        return ctx.pointwise(x.size, x.dtype, x.device, lambda i: call("mul", x.load(i), const(2, x.dtype)))

    program = lower(capture(torch.sin, X), {**core_lowerings(), aten.sin.default: double})
    torch.testing.assert_close(interpret(program, [X])[0], X * 2)


def test_a_transformer_block() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).eval()
    names = [name for name, _ in layer.named_parameters()]

    def function(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    arguments = [torch.randn(2, 5, 16), *(p.detach() for p in layer.parameters())]
    with torch.no_grad():
        check(function, *arguments, native=False, rtol=1e-4, atol=1e-4)
        check(function, *arguments, native=False, dynamic=True, rtol=1e-4, atol=1e-4)


def test_an_op_that_torch_defines_late_is_lowered() -> None:
    """prims.fma exists once dynamo has traced an optimizer that needs it, which may be after litz was imported."""
    core_lowerings()
    __import__("torch._inductor.inductor_prims")
    assert torch.ops.prims.fma.default in core_lowerings()
    program = lower(capture(lambda x: torch.ops.prims.fma(x, x, x), X))
    assert not program.externs


@pytest.mark.parametrize("read", [False, True])
def test_a_plugin_need_not_make_a_result_that_nobody_reads(read: bool) -> None:
    """A lowering of several results may return None for one of them."""

    def variance(ctx: Any, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        made = core_lowerings()[aten.var_mean.correction](ctx, x, dims, correction=correction, keepdim=keepdim)
        return made[0], None

    plugin = SimpleNamespace(litz_register_lowerings=hookimpl(lambda: {aten.var_mean.correction: variance}))
    plugins = make_plugins(builtin_plugins(), extra=[("mine", plugin)], entry_points=())
    graph = capture(lambda x: torch.var_mean(x, 1)[: 2 if read else 1], X)
    if read:
        with pytest.raises(PluginHookError, match="result 1: None, where a tensor"):
            lower(graph, plugins.lowerings())
    else:
        (found,) = interpret(lower(graph, plugins.lowerings()), [X])
        torch.testing.assert_close(found, X.var(1))
