"""What is saved for the backward: no sizes as tensors, and no whole tensors for the sake of a part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from litz import report as reports
from litz.capture.graph import Graph
from litz.capture.joint.nouns import Halves
from litz.capture.torch_api import memory_owner
from litz.lower import lower
from litz.pipeline import make_compiler
from litz_passes.joint.saved_views import save_wholes
from passes.test_saved_positions import eager, graphs_of
from support.retarget import cuda_schedules

aten = torch.ops.aten
Fn = Callable[..., Any]


def numbers(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def saved(graph: Graph) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The sizes and strides of a backward's tensors."""
    values = [node.meta["val"] for node in graph.placeholders]
    return [(tuple(v.shape), v.stride()) for v in values if isinstance(v, Tensor)]


def as_eager(fn: Fn, *args: Tensor) -> Graph:
    """The backward, whose gradient is eager's."""
    graphs, gradient = graphs_of(fn, *args, kernels=False)
    torch.testing.assert_close(gradient, eager(fn, *args), rtol=1e-4, atol=1e-4)
    return graphs[1]


# ------------------------------------------------------------------------------------------------------------- parts

WEIGHT = numbers(16, 16, 3, 3) / 12


def of_a_slice(x: Tensor, weight: Tensor = WEIGHT) -> Tensor:
    """A convolution of a quarter, as in res2net; the rest goes on without a gradient that needs it."""
    first, *others = x.tanh().sin().split(16, 1)
    return F.conv2d(first, weight, padding=1).sum() + sum(other.sum() for other in others)


def of_two_slices(x: Tensor, weight: Tensor) -> Tensor:
    first, second, *others = x.tanh().sin().split(16, 1)
    return (F.conv2d(first, weight) * F.conv2d(second, weight)).sum() + others[0].sum()


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_a_part_is_saved_dense(fmt: torch.memory_format) -> None:
    """In the part's order of dimensions; the plan of layouts may choose another for the backward's input."""
    x, weight = numbers(8, 64, 32, 32).to(memory_format=fmt), WEIGHT.clone().requires_grad_()
    graphs, gradient = graphs_of(of_a_slice, x, weight)
    torch.testing.assert_close(gradient, eager(of_a_slice, x, weight), rtol=1e-4, atol=1e-4)
    forward = [item for item in graphs[0].outputs if isinstance(item, torch.fx.Node)]
    (part,) = (node.meta["val"] for node in forward if node.meta["val"].shape == (8, 16, 32, 32))
    assert part.is_contiguous(memory_format=fmt)
    sizes = dict(saved(graphs[1]))
    assert sorted(sizes[8, 16, 32, 32])[-1] == 16 * 32 * 32


def test_parts_that_are_half_together_are_copied() -> None:
    x, weight = numbers(8, 64, 32, 32), WEIGHT.clone().requires_grad_()
    sizes = saved(as_eager(of_two_slices, x, weight))
    assert sizes.count(((8, 16, 32, 32), (16 * 1024, 1024, 32, 1))) >= 2


def returned_too(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = x.tanh().sin()
    return F.conv2d(y[:, :16], weight).sum(), y


def most_of_it(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x.tanh().sin()[:, :16], weight).sum()


def saved_too(x: Tensor, weight: Tensor) -> Tensor:
    y = x.tanh().sin()
    return F.conv2d(y[:, :16], weight).sum() + (torch.special.expit(y) * y).prod()


def of_an_input(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x[:, :16], weight).sum()


@pytest.mark.ci_cases("of_a_slice-64-8", "returned_too-64-32", "of_an_input-64-32")
@pytest.mark.parametrize(
    ("fn", "channels", "side"),
    [(returned_too, 64, 32), (most_of_it, 24, 48), (of_an_input, 64, 32), (of_a_slice, 64, 8)],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_what_is_kept_anyway_or_small_is_not_copied(fn: Fn, channels: int, side: int) -> None:
    """Somebody else holds the whole; most of it is needed; there is no megabyte to gain."""
    x, weight = numbers(8, channels, side, side), WEIGHT.clone().requires_grad_()
    part = ((8, 16, side, side), (16 * side * side, side * side, side, 1))
    assert part not in saved(as_eager(fn, x, weight))


def test_a_forward_of_library_calls_reads_the_copy() -> None:
    """Once: the convolution would make a dense copy of its own."""
    graphs, _ = graphs_of(of_a_slice, numbers(8, 64, 32, 32), WEIGHT.clone().requires_grad_(), kernels=False)
    (convolution,) = (n for n in graphs[0].nodes if "convolution" in str(n.target))
    first = convolution.args[0]
    assert isinstance(first, torch.fx.Node) and first.meta["val"].is_contiguous()


def test_one_kernel_of_a_gpu_stores_the_whole_and_the_part() -> None:
    x, weight = numbers(8, 64, 32, 32).requires_grad_(), WEIGHT.clone().requires_grad_()
    schedules = cuda_schedules(
        lambda backend: torch.compile(of_a_slice, backend=backend)(x, weight).backward(), make_compiler()
    )
    stored = [{tuple(map(int, schedules[0].program.buffers[name].layout.size)) for name in kernel.writes}
              for kernel in schedules[0].kernels]  # fmt: skip
    assert sum((8, 16, 32, 32) in each for each in stored) == 1


# ------------------------------------------------------------------------------------------------------------ wholes


def of_three_slices(x: Tensor, weight: Tensor) -> Tensor:
    """As in res2net's first block of a stage: three of four parts of a relu, and the mask of the relu's gradient."""
    parts = F.relu(F.conv2d(x, weight.tile(4, 1, 1, 1), padding=1)).split(16, 1)
    return sum(F.conv2d(part, weight, padding=1).square().sum() for part in parts[:3]) + parts[3].sum()


def test_most_of_a_tensor_is_saved_as_a_whole_without_its_mask() -> None:
    x, weight = numbers(12, 16, 40, 40), WEIGHT.clone().requires_grad_()
    backward = as_eager(of_three_slices, x, weight)
    values = [node.meta["val"] for node in backward.placeholders if isinstance(node.meta["val"], Tensor)]
    assert not any(value.dtype == torch.bool for value in values)
    assert [value.shape for value in values].count((12, 64, 40, 40)) == 1
    assert not any(value.shape == (12, 16, 40, 40) and value.stride(0) == 64 * 1600 for value in values)


def test_gradients_of_all_that_is_made_again() -> None:
    x, weight = numbers(12, 16, 40, 40), WEIGHT.double().requires_grad_()
    results = []
    for function in (of_three_slices, torch.compile(of_three_slices, backend="litz", dynamic=False)):
        leaf, own = x.double().requires_grad_(), weight.detach().clone().requires_grad_()
        function(leaf, own).backward()
        results.append((leaf.grad, own.grad))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_small_mask_is_not_worth_it() -> None:
    x, weight = numbers(2, 16, 8, 8), WEIGHT.clone().requires_grad_()
    backward = as_eager(of_three_slices, x, weight)
    of_all = [v.dtype for v in (node.meta["val"] for node in backward.placeholders) if v.shape == (2, 64, 8, 8)]
    assert sorted(of_all, key=str) == [torch.bool, torch.float32]


def attention(x: Tensor, weight: Tensor) -> Tensor:
    """Its gradient reads the queries, keys and values, which are views of one product."""
    parts = (x.tanh() @ weight).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2).square()


def norm_and_product(x: Tensor, weight: Tensor) -> Tensor:
    """One gradient reads the function's result as it is, another as a matrix."""
    y = x.tanh().exp()
    return (y.flatten(0, 1) @ weight).sum() + y.prod()


def images_and_rows(x: Tensor, weight: Tensor) -> Tensor:
    """One gradient reads the images, whose layout litz may choose, another reads them as rows."""
    y = F.conv2d(x, weight, padding=1).sin()
    return F.conv2d(y, weight).sum() + (y.flatten(2).transpose(1, 2) @ weight.flatten(1)[:, :8]).sum()


def of_a_region(x: Tensor, weight: Tensor) -> Tensor:
    """A region that wants all saved, views too."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    for _ in range(2):
        x = checkpoint(attention, x, weight, use_reentrant=False, context_fn=contexts)
    return x


VIEWS = {
    "a region": (of_a_region, (3, 7, 16), (16, 48)),
    "attention": (attention, (3, 7, 16), (16, 48)),
    "one column": (attention, (3, 1, 16), (16, 48)),
    "odd heads": (attention, (2, 5, 10), (10, 30)),
    "norm and product": (norm_and_product, (3, 7, 16), (16, 5)),
    "images and rows": (images_and_rows, (2, 16, 6, 7), (16, 16, 3, 3)),
}


def owners(backward: Graph, forward: Graph) -> list[torch.fx.Node]:
    """Whose memory the saved tensors are that the forward made, once for each tensor."""
    names = {node.name for node in backward.placeholders}
    outputs = (item for item in forward.outputs if isinstance(item, torch.fx.Node) and item.name in names)
    return [memory_owner(item) for item in outputs if isinstance(item.meta["val"], Tensor)]


@pytest.mark.ci_cases(*(f"{case}-" for case in VIEWS), "attention-sizes that vary", "norm and product-sizes that vary")
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "sizes that vary"])
@pytest.mark.parametrize("case", VIEWS)
def test_memory_is_saved_once_however_many_views_are_read(case: str, dynamic: bool) -> None:
    """A plan would count it for each view, and nobody could write over it."""
    fn, *sizes = VIEWS[case]
    x, weight = numbers(*sizes[0]), (numbers(*sizes[1]) / 4).requires_grad_()
    kernels = case in ("attention", "images and rows")  # of the other views, too, and of layouts that litz chooses
    (forward, backward), gradient = graphs_of(fn, x, weight, dynamic=dynamic, kernels=kernels and not dynamic)
    torch.testing.assert_close(gradient, eager(fn, x, weight), rtol=1e-4, atol=1e-4)
    found = owners(backward, forward)
    assert len(found) == len(set(found))


def test_gradients_of_views_in_double_precision() -> None:
    x, weight = numbers(3, 7, 16).double(), (numbers(16, 48) / 4).double().requires_grad_()
    _, gradient = graphs_of(attention, x, weight, kernels=False)
    torch.testing.assert_close(gradient, eager(attention, x, weight), rtol=1e-10, atol=1e-10)


def test_views_of_what_the_user_sees_stay() -> None:
    """The user may write to a result, or free it: the backward takes what the forward returns, as ever."""

    def seen_too(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = x.tanh() @ weight
        return F.scaled_dot_product_attention(*y.unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)).square(), y

    x, weight = numbers(3, 7, 16), (numbers(16, 48) / 4).requires_grad_()
    (forward, backward), gradient = graphs_of(seen_too, x, weight, kernels=False)
    torch.testing.assert_close(gradient, eager(seen_too, x, weight), rtol=1e-4, atol=1e-4)
    found = owners(backward, forward)
    assert len(found) - len(set(found)) == 2  # queries, keys and values


def test_what_a_saved_view_holds_is_not_computed_again() -> None:
    """As a budget may ask for: the view's memory is the whole's."""
    fake = FakeTensorMode()
    made = {}
    for half in ("forward", "backward"):
        graph = torch.fx.Graph()

        def node(target: Any, *args: Any, graph: torch.fx.Graph = graph) -> torch.fx.Node:
            name = str(target.overloadpacket.__name__) if callable(target) else ""
            new = graph.create_node("call_function", target, args, name=name) if name else graph.placeholder(target)
            with fake:
                inputs = torch.fx.map_arg(args, lambda given: given.meta["val"])
                new.meta["val"] = target(*inputs) if callable(target) else torch.empty(4, 6)
            return new

        x = node("primals_1")
        if half == "forward":
            whole = node(aten.tanh.default, x)
            rows, columns = node(aten.view.default, whole, [24]), node(aten.permute.default, whole, [1, 0])
            graph.output((node(aten.sum.default, whole), x, rows, columns))
        else:
            saved = node("view"), node("permute")
            for each, shape in zip(saved, ((24,), (6, 4)), strict=True):
                with fake:
                    each.meta["val"] = torch.empty(shape)
            again = node(aten.tanh.default, x)
            graph.output((node(aten.sum.default, again), *(node(aten.sum.default, each) for each in saved)))
        made[half] = torch.fx.GraphModule({}, graph)
    halves = Halves("graph0_halves", made["forward"], made["backward"], 1)
    whole = save_wholes(halves, cast("Any", None)).backward.graph
    assert [node.name for node in whole.find_nodes(op="placeholder")] == ["primals_1", "tanh"]
    assert not whole.find_nodes(op="call_function", target=aten.tanh.default)


def test_a_view_of_a_part_counts_as_the_whole_that_it_holds() -> None:
    """The forward saves the whole, in whose memory the part lies."""

    def part(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight)[:, :12].sin()  # its gradient reads three quarters of the product

    x, weight = numbers(8, 16), numbers(16, 16).requires_grad_()
    (_, backward), gradient = graphs_of(part, x, weight, kernels=False)
    torch.testing.assert_close(gradient, eager(part, x, weight), rtol=1e-4, atol=1e-4)
    assert ((8, 16), (16, 1)) in saved(backward)
    assert flat(backward).count((8, 12)) == 1  # the result's gradient


def test_a_plan_counts_the_memory_of_views_once() -> None:
    """What the forward saved is no more than what the forward held at most."""

    def layers(x: Tensor, weight: Tensor) -> Tensor:
        for _ in range(4):
            x = attention(x, weight)
        return x

    x, weight = numbers(2, 64, 16), (numbers(16, 48) / 4).requires_grad_()
    with reports.collect() as found:
        compiled = torch.compile(layers, backend="litz", options={"graph_cache": False})
        compiled(x.requires_grad_(), weight).sum().backward()
    forward, backward = found
    saved_bytes = sum(
        backward.program.hint(backward.program.buffers[name].nbytes) for name in backward.program.dying_inputs
    )
    assert saved_bytes <= max(forward.memory_held)


# ------------------------------------------------------------------------------------------------------- sizes alone


def flat(graph: Graph) -> list[tuple[int, ...]]:
    return [size for size, _ in saved(graph)]


@pytest.mark.ci_cases("<lambda>-size0", "<lambda>-size2", "<lambda>-size4")
@pytest.mark.parametrize(
    ("fn", "size"),
    [
        (lambda x: F.avg_pool2d(x.exp(), 3, 2, 1), (4, 8, 33, 33)),
        (lambda x: F.avg_pool2d(x.exp(), 3, 2, 1, count_include_pad=False), (4, 8, 33, 33)),
        (lambda x: F.avg_pool2d(x.exp(), 3, 2, ceil_mode=True), (4, 8, 34, 33)),
        (lambda x: F.avg_pool3d(x.exp(), 2), (2, 3, 9, 8, 7)),
        (lambda x: F.adaptive_avg_pool2d(x.exp(), (3, 5)), (2, 3, 13, 17)),
        (lambda x: F.adaptive_avg_pool3d(x.exp(), 3), (2, 3, 7, 8, 9)),
    ],
)
def test_an_average_pool_saves_nothing_for_its_sizes(fn: Fn, size: tuple[int, ...]) -> None:
    """`exp` saves its result, which has the same sizes; the pool's input is that result."""
    x = numbers(*size)
    backward = as_eager(fn, x)
    assert flat(backward).count(size) <= 1


def test_a_pool_of_a_sum_saves_nothing_at_all() -> None:
    backward = as_eager(lambda x: F.avg_pool2d(x + 1, 2), numbers(4, 8, 32, 32))
    assert (4, 8, 32, 32) not in flat(backward)


def stem(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    y = F.relu(F.batch_norm(F.conv2d(x, weight, padding=1), None, None, scale, training=True))
    return F.conv2d(F.max_pool2d(y, 2), weight).square()


@pytest.mark.parametrize("fmt", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_a_pool_of_a_norm_saves_the_norms_input_alone(fmt: torch.memory_format) -> None:
    """The relu's mask is made of the norm's input, which the norm's gradient reads anyway."""
    x = numbers(4, 16, 32, 32).to(memory_format=fmt)
    backward = as_eager(stem, x, WEIGHT.clone().requires_grad_(), numbers(16).requires_grad_())
    assert flat(backward).count((4, 16, 32, 32)) == 2  # of the convolution: its input and its result


@pytest.mark.ci_cases("adaptive volume", "overlapping", "dilated")
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, dilation=2),
        lambda x: F.adaptive_max_pool2d(x, 5),
        lambda x: F.fractional_max_pool2d(x, 2, output_size=7, _random_samples=torch.full((4, 8, 2), 0.5)),
        lambda x: F.max_pool3d(x, 2),
        lambda x: F.adaptive_max_pool3d(x, 3),
    ],
    ids=["overlapping", "dilated", "adaptive", "fractional", "volume", "adaptive volume"],
)
def test_a_max_pool_saves_positions_alone(pool: Fn) -> None:
    x = numbers(4, 8, 18, 18)
    backward = as_eager(lambda x: pool(x + 1), x)
    assert tuple(x.shape) not in flat(backward)


def test_a_librarys_gradient_gets_memory_that_nobody_fills() -> None:
    """Of the input of a pool, whose gradient on a CPU is torch's: no kernel, and no bytes saved."""
    graphs, _ = graphs_of(lambda x: F.max_pool2d(x + 1, 3, 2, 1), numbers(4, 8, 32, 32), kernels=False)
    program = lower(graphs[1])
    assert [type(op).__name__ for op in program.operations] == ["Extern", "Extern"]


def test_sizes_that_are_not_known() -> None:
    fn = lambda x: F.avg_pool2d(x + 1, 2)
    _, gradient = graphs_of(fn, numbers(4, 8, 32, 32), dynamic=True)
    torch.testing.assert_close(gradient, eager(fn, numbers(4, 8, 32, 32)))
