"""Which ops are left after capture, for the modules people use; and that half-precision norms compute in float32."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from litz.capture import torch_api
from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import _is_laid, decompositions, fake_rules
from litz.driver import capturing
from litz.pipeline import make_compiler, schedule_only

COMPOSITES = (
    *("native_layer_norm", "batch_norm", "native_group_norm", "_softmax", "_log_softmax", "nll_loss", "gelu", "silu"),
    *("embedding", "embedding_dense_backward", "hardswish", "elu", "mse_loss", "huber_loss", "lerp"),
    *("addcmul", "addcdiv", "upsample_bilinear2d", "grid_sampler_2d", "_adaptive_avg_pool2d", "masked_fill", "tril"),
    *("index_select", "stack", "split", "unbind", "transpose", "std", "logsumexp", "linalg_vector_norm", "glu"),
)

# Torch has no decomposition for them; they have lowerings or run as library calls.
WITHOUT_RULE = {"_adaptive_avg_pool2d_backward", "grid_sampler_2d_backward", "upsample_bilinear2d_backward"}


def everyones():
    """The table with what litz's plugins register."""
    return capturing.decompositions(make_compiler())


def test_rules_of_fake_results_are_of_each_op_that_lays_its_own():
    """Of core's table they are known; a plugin adds some, takes some away, and has others in place of core's."""
    core, add, lay = decompositions(), torch.ops.aten.add.Scalar, torch.ops.aten.addcmul.default
    new = next(op for op in (torch.ops.aten.fmax.default, torch.ops.aten.add.Tensor) if op not in core)
    for table in (core, everyones(), decompositions({add: None, lay: len, new: len})):
        assert fake_rules(table).keys() == set(filter(_is_laid, table))
    rules = fake_rules(decompositions({add: None, lay: len, new: len}))
    assert add not in rules and rules[lay]([7]) == rules[new]([7]) == 1 and _is_laid(add)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def capture(module, *inputs):
    """The graphs of one training step of `module`, which runs as captured; its output."""
    graphs = []

    def compile_graph(graph):
        graphs.append(graph)
        interpreter = torch.fx.Interpreter(graph.module)
        return lambda arguments: interpreter.run(*arguments)

    def backend(gm, example_inputs):
        return compile_with_aot(gm, example_inputs, compile_graph=compile_graph, decompositions=everyones())

    torch._dynamo.reset()
    result = torch.compile(module, backend=backend)(*inputs)
    if result.requires_grad:
        result.float().sum().backward()
    return graphs, result


def names(graphs):
    return {node.target._opname for graph in graphs for node in graph.nodes if hasattr(node.target, "_opname")}


IMAGE = (4, 8, 6, 6)
CASES = {
    "layer_norm": nn.LayerNorm(6),
    "batch_norm": nn.BatchNorm2d(8),
    "batch_norm_eval": nn.BatchNorm2d(8).eval(),
    "group_norm": nn.GroupNorm(2, 8),
    "softmax": nn.Softmax(-1),
    "log_softmax": nn.LogSoftmax(1),
    "cross_entropy": Apply(lambda x: F.cross_entropy(x.flatten(1), torch.tensor([0, 1, 2, 3]))),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "elu": nn.ELU(),
    "hardswish": nn.Hardswish(),
    "glu": nn.GLU(1),
    "rms_norm": nn.RMSNorm(6),
    "mse": Apply(lambda x: F.mse_loss(x, torch.zeros_like(x))),
    "huber": Apply(lambda x: F.huber_loss(x, torch.zeros_like(x))),
    "bilinear": Apply(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "adaptive_pool": nn.AdaptiveAvgPool2d(2),
    "std": Apply(lambda x: x.std(-1)),
    "logsumexp": Apply(lambda x: x.logsumexp(1)),
    "split": Apply(lambda x: torch.stack(x.split(4, 1)).tril().transpose(0, 1)),
    "masked_fill": Apply(lambda x: x.masked_fill(x > 0, 2.0)),
    "norm": Apply(lambda x: torch.linalg.vector_norm(x, dim=1)),
    "pad": Apply(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "roll": Apply(lambda x: torch.rot90(x.roll(1, 2), 1, (2, 3))),
    "grid_sample": Apply(lambda x: F.grid_sample(x, torch.linspace(-1, 1, 288).view(4, 6, 6, 2), align_corners=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_composite_is_left_and_values_are_eager(name):
    module = CASES[name]
    state = {key: value.clone() for key, value in module.state_dict().items()}
    x = torch.randn(IMAGE, requires_grad=True)
    graphs, result = capture(module, x)
    left = names(graphs)
    print(name, sorted(left))
    composites = {*COMPOSITES, *(f"{op}_backward" for op in COMPOSITES)} - WITHOUT_RULE
    assert not left & composites
    assert not [op for op in left if "batch_norm" in op or "layer_norm" in op]
    module.load_state_dict(state)
    eager = x.detach().clone().requires_grad_()
    expected = module(eager)
    expected.sum().backward()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x.grad, eager.grad, rtol=1e-4, atol=1e-5)


def test_dropout_is_lowered_whole():
    """Its own lowering draws in float32; torch's decomposition draws in the input's type, coarse for half types."""
    left = names(capture(nn.Dropout(0.3), torch.ones(10, requires_grad=True))[0])
    assert "native_dropout" in left
    assert not any("bernoulli" in op or "native_dropout_backward" in op for op in left)


def test_embedding_stays_and_its_backward_is_a_scatter():
    """An index takes negative positions, and embedding does not."""
    graphs, _ = capture(nn.Embedding(10, 4), torch.randint(10, (3, 5)))
    assert [op for op in names(graphs) if "embedding" in op] == ["embedding"]


def test_contractions_and_attention_stay_whole():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.conv = nn.Linear(6, 6), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            x = self.linear(self.conv(x))
            return F.scaled_dot_product_attention(x, x, x)

    left = names(capture(Model(), torch.randn(IMAGE, requires_grad=True))[0])
    assert {"addmm", "convolution", "convolution_backward"} <= left
    assert "_scaled_dot_product_flash_attention_for_cpu" in left


@pytest.mark.parametrize("module", [nn.LayerNorm(64), nn.BatchNorm1d(64), nn.GroupNorm(4, 64)], ids=type)
def test_half_norms_compute_in_float32(module):
    x = torch.randn(32, 64)
    half = module.half() if not isinstance(module, nn.BatchNorm1d) else module
    graphs, result = capture(half, x.half())
    statistics = [
        node
        for graph in graphs
        for node in graph.nodes
        if str(node.target).startswith(("aten.var_mean", "aten.std_mean"))
    ]
    assert statistics and all(node.args[0].meta["val"].dtype == torch.float32 for node in statistics)
    assert result.dtype == torch.float16


def test_a_plugin_can_add_and_keep_decompositions():
    rule = lambda x: x
    table = decompositions({torch.ops.aten.relu.default: rule, torch.ops.aten.gelu.default: None})
    assert table[torch.ops.aten.relu.default] is rule
    assert torch.ops.aten.gelu.default not in table
    assert torch.ops.aten.gelu.default in decompositions()


@pytest.mark.parametrize(
    "cut",
    [lambda x: x.split((1, 0, 3, 4), 1), lambda x: x.chunk(3, -1), lambda x: x.split(4)],
    ids=["sizes", "chunk", "split"],
)
def test_parts_are_slices(cut):
    """as_strided views, as torch's rule makes them, would tie what is cut to the strides that it was traced with."""
    x = torch.randn(4, 8, 6, 6, requires_grad=True)
    graphs, result = capture(Apply(lambda x: sum(part.sin().sum() for part in cut(x * 2))), x)
    torch.testing.assert_close(result, (x * 2).sin().sum())
    torch.testing.assert_close(x.grad, 2 * (x * 2).cos())
    assert "slice" in names(graphs) or cut(x)[0].shape == x.shape
    assert "as_strided" not in names(graphs)


def test_parts_of_symbolic_sizes():
    x = torch.randn(4, 6)
    torch._dynamo.mark_dynamic(x, 0)
    _, result = capture(Apply(lambda x: torch.cat(x.split((1, x.size(0) - 1))[::-1])), x)
    torch.testing.assert_close(result, torch.cat((x[1:], x[:1])))


LAYOUTS = {
    "size 1": ((1, 2, 1, 2), (1, 1, 1, 2)),
    "size 1, as channels last": ((1, 2, 1, 3), (1, 1, 2, 2)),
    "channels last": ((2, 3, 8, 8), (192, 1, 24, 3)),
    "reversed": ((2, 3, 8, 8), (1, 2, 6, 48)),
    "expanded": ((2, 3, 8, 8), (64, 0, 8, 1)),
}
LIES_AS_IN_EAGER = {
    "repeat": lambda x: x.repeat((2, 1, 2, 1, 1)),
    "repeat inside": lambda x: x.repeat((1, 2, 1, 3)),
    "repeat to nothing": lambda x: x.repeat((2, 0, 2, 1)),
    "repeat a column": lambda x: torch.as_strided(x, (4, 1), (1, 1)).repeat((1, 2)),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive pooling in one dimension": lambda x: F.adaptive_avg_pool1d(x[0], 3),
    "adaptive pooling that divides": lambda x: F.adaptive_avg_pool2d(x, 1),
    "filling": lambda x: x.index_fill(1, torch.tensor([0], device=x.device), 2.0),
    "unpooling": lambda x: F.max_unpool2d(x, torch.zeros(x.shape, dtype=torch.int64), 2),
    "nearest": lambda x: F.interpolate(x[0], size=3),
    "nearest, exact": lambda x: F.interpolate(x[0], size=3, mode="nearest-exact"),
}


@pytest.mark.parametrize("name", LIES_AS_IN_EAGER)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_lie_as_in_eager(name, layout):
    """as_strided of the result reads other elements where they do not, and the caller sees other strides."""
    size, stride = LAYOUTS[layout]
    x = torch.empty_strided(size, stride).zero_()
    with FakeTensorMode() as mode:
        graph = make_fx(LIES_AS_IN_EAGER[name], decomposition_table=everyones())(mode.from_tensor(x))
    lies, eager = graph.graph.output_node().args[0].meta["val"], LIES_AS_IN_EAGER[name](x)
    assert lies.shape == eager.shape
    assert [step for n, step in zip(eager.shape, lies.stride()) if n > 1 and eager.numel()] == [
        step for n, step in zip(eager.shape, eager.stride()) if n > 1 and eager.numel()
    ]


@pytest.mark.parametrize("op", [torch.copysign, torch.floor_divide, torch.clamp_min, torch.remainder, torch.atan2])
def test_a_number_on_the_cpu_beside_a_tensor_of_another_device(op: Any) -> None:
    """Eager takes it for a number, on either side. torch's rule of copysign refused it."""
    with FakeTensorMode():
        x, number = torch.empty(4, 5, device="cuda"), torch.empty((), device="cpu")
    for args in ((x, number), (number, x)):
        torch._dynamo.reset()
        (schedule,) = schedule_only(op, args)
        (kernel,) = schedule.kernels
        assert kernel.device.type == "cuda"


def test_norms_over_a_dimension_of_one_element_from_the_end() -> None:
    """torch 2.11's rule looks for -1 among the dimensions, and a norm of one element of bfloat16 is in float32."""

    def old(x: torch.Tensor, ord: Any, dim: Any, keepdim: bool, *, dtype: Any) -> torch.Tensor:
        x = x.float().abs()
        return x.flatten()[0] if dim is None else x.view([n for at, n in enumerate(x.shape) if at not in dim])

    x = torch.tensor([[-2.0], [3.0]]).bfloat16()
    norm = functools.partial(torch_api.norm_of_dims_from_the_front, old)
    for given, dim in ((x, [-1]), (x, [1]), (x[0], [-1]), (x[:1], [-2]), (x[0, 0], None)):
        expected = torch.linalg.vector_norm(given, 2, dim)
        found = norm(given, 2, dim, False)
        assert found.shape == expected.shape and found.dtype == expected.dtype and torch.equal(found, expected)
