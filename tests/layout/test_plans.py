"""What is planned for an H100, for models of fake tensors: which convolutions, how many copies, and why not."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from litz import report as reports
from litz.ir import Extern, Layout, Template
from litz.target import target_named
from litz_layout import costs
from litz_layout.roles import takes_part_in_statistics
from litz_layout.table import Pass, Shape, find_row
from support.layout_models import Bottlenecks, ConvNext, Pixelwise, Residual, UNet
from support.layout_plans import copies, cuda_plan, summaries

BLOCKS = 2
LARGE = functools.partial(Residual, 64, BLOCKS)


def test_a_plain_network_is_copied_once_on_its_way_in() -> None:
    """One copy for the image, one per weight that has more than one pixel, none for what comes out."""
    decisions, (schedule,) = cuda_plan(LARGE, (64, 3, 56, 56))
    assert summaries(decisions) == ["layouts planned"]
    wide = 1 + 2 * BLOCKS  # the stem's and the blocks' weights
    assert len(copies(decisions)) == 1 + wide
    program = schedule.program
    calls = [op for op in program.operations if isinstance(op, Template) and op.kind == "convolution"]
    assert len(calls) == wide
    for call in calls:
        image, weight = call.refs[:2]
        for ref in (image, weight):
            strides = dict(zip((1, 2, 3), map(int, ref.layout.stride[1:]), strict=True))
            assert strides[1] <= strides[3] <= strides[2], "channels are innermost"


def test_training_copies_each_weight_once_and_its_gradient_back() -> None:
    decisions, schedules = cuda_plan(LARGE, (64, 3, 56, 56), train=True)
    assert summaries(decisions) == ["layouts planned", "layouts planned"]
    wide = 1 + 2 * BLOCKS
    forward = [text for text in copies(decisions) if "primals" in text]
    back = [text for text in copies(decisions) if "primals" not in text]
    assert len(forward) == 1 + wide and all("output" in text for text in forward), "saved as copied"
    assert len(back) == wide and all(text.endswith("for output") for text in back)
    assert len(schedules) == 2


def test_the_copy_is_made_where_the_tensor_is_smallest() -> None:
    """A library call in the middle wants channels first: the copy waits for the pool that makes the tensor small."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.first(x))
            y = nn.functional.avg_pool2d(y, 4)
            return torch.linalg.qr(y.float())[0]

    decisions, _ = cuda_plan(Model, (64, 64, 64, 64))
    assert summaries(decisions) == ["layouts planned"]
    # The float copy of the pooled tensor is written channels first, so that nothing large is copied.
    assert all("arg" in text for text in copies(decisions)), copies(decisions)
    changed = {d.subject for d in decisions if d.chosen.startswith("strides")}
    assert "relu" in changed


def test_frozen_weights_are_laid_out_when_compiling() -> None:
    """No copy is left but the image's: the weights are constants, channels last, and the batch norms are in them."""
    model = Residual(16, 2).eval()
    fresh = copy.deepcopy(model)
    x = torch.randn(2, 3, 16, 16)
    options = {"layout.force": True, "freezing": True}
    with torch.no_grad(), reports.collect() as collected:
        torch.testing.assert_close(torch.compile(model, backend="litz", options=options)(x), fresh(x))
    program = collected[0].program
    assert program is not None
    calls = [op for op in program.operations if isinstance(op, Template) and op.kind == "convolution"]
    for call in calls:
        weight = call.refs[1]
        assert weight.buffer in program.constants, "no copy in between"
        assert program.constants[weight.buffer].is_contiguous(memory_format=torch.channels_last)
    for mine, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
    assert sum(d.chosen == "folded" for d in collected[0].decisions) == 5


@pytest.mark.parametrize(
    ("make", "size", "reason"),
    [
        (functools.partial(nn.Conv2d, 64, 64, 3), (2, 64, 8, 8), "the copies would cost more"),
        (functools.partial(nn.Conv2d, 64, 64, 3, groups=4), (64, 64, 56, 56), "the copies would cost more"),
        (functools.partial(nn.Conv2d, 64, 64, 3, groups=64), (64, 64, 56, 56), "the copies would cost more"),
        (functools.partial(Pixelwise, 64), (64, 64, 56, 56), "no convolution gains"),
    ],
    ids=["one convolution", "grouped", "depthwise", "aligned pixels"],
)
def test_left_alone(make: object, size: tuple[int, ...], reason: str) -> None:
    decisions, _ = cuda_plan(make, size)  # type: ignore[arg-type]
    (decision,) = decisions
    assert decision.chosen == "layouts left alone" and reason in decision.reason
    assert [name for name, _ in decision.considered] == ["as traced", "planned"]


BATCHES = [
    pytest.param(
        batch,
        train,
        id=f"{'training' if train else 'inference'}-{batch}",
        marks=[] if train == (batch != 8) else [pytest.mark.thorough],
    )
    for train in (False, True)
    for batch in (1, 8, 32, 64)
]
"""Each batch once, training or not; the other way with `make test-all`."""


@pytest.mark.ci_cases("training-1")
@pytest.mark.parametrize(("batch", "train"), BATCHES)
def test_no_convolution_is_left_for_the_library_to_transpose(batch: int, train: bool) -> None:
    """Whatever the batch: a stage of 7 by 7 pixels that stays channels first among others that do not has cuDNN
    transpose operands and result of each of its convolutions, those of one pixel too, as 49 pixels are no 16 bytes."""
    _, schedules = cuda_plan(Bottlenecks, (batch, 64, 56, 56), train=train)
    calls = [op for one in schedules for op in one.program.operations if is_convolution(op)]
    assert len(calls) == (2 if train else 1) * 16
    for call in calls:
        refs = call.refs[: 3 if "backward" in call.target_name else 2]
        if not all(is_channels_last(ref.layout) for ref in refs):
            *images, weight = refs[1:] if len(refs) == 3 else refs
            assert weight.layout.size[2] == 1, (call.name, "more than one pixel, transposed within")
            assert all(ref.layout.size[2] in (1, 28, 56) for ref in images), (call.name, "14 by 14 bf16 are 392 bytes")


def is_channels_last(layout: Layout) -> bool:
    (channels, step), *pixels = zip(map(int, layout.size[1:]), map(int, layout.stride[1:]), strict=True)
    wide = [step for size, step in pixels if size > 1]
    return channels == 1 or not wide or step < min(wide)


def test_the_library_transposes_each_tensor_by_a_kernel() -> None:
    """Of a small convolution the launches are most of what channels first costs."""
    decisions, _ = cuda_plan(functools.partial(Bottlenecks, (512,)), (1, 64, 7, 7))
    (decision,) = (d for d in decisions if d.chosen == "layouts planned")
    traced, planned = (us for _, us in decision.considered)
    launch = target_named("H100").launch_us
    assert traced - planned > 2 * launch, (
        "image, weight and result of the convolution of 3 by 3, less the weight's copy"
    )


def is_convolution(operation: object) -> bool:
    return isinstance(operation, Extern) and "aten.convolution" in operation.target_name


def test_what_is_channels_last_already_stays() -> None:
    def make() -> nn.Module:
        model = LARGE()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                data = module.weight.data
                module.weight = nn.Parameter(data.contiguous(memory_format=torch.channels_last))
        return model

    decisions, _ = cuda_plan(make, (64, 3, 56, 56))
    assert len(copies(decisions)) <= 1, "no weight is copied, at most the image"
    assert not any(d.chosen.startswith("strides") for d in decisions), "no tensor changes"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_without_tensor_cores_stay_channels_first(dtype: torch.dtype) -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        decisions, _ = cuda_plan(LARGE, (64, 3, 56, 56), dtype)
    assert summaries(decisions) == ["layouts left alone"]


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("dtype", "width", "train", "chosen"),
    [
        (torch.bfloat16, 16, False, "planned"),
        (torch.bfloat16, 16, True, "planned"),
        (torch.bfloat16, 8, True, "planned"),
        (torch.bfloat16, 24, False, "left alone"),
        (torch.bfloat16, 24, True, "left alone"),
        (torch.bfloat16, 4, False, "planned"),
        (torch.bfloat16, 4, True, "left alone"),
        (torch.float32, 16, False, "left alone"),
        (torch.float32, 1, True, "planned"),
    ],
)
def test_convolutions_of_groups_as_measured(dtype: torch.dtype, width: int, train: bool, chosen: str) -> None:
    """width: channels of a group. In bf16 groups of a power of two gain, in training of 8 or more; in float32 only
    depthwise convolutions do."""
    groups = 128 // width
    channels = groups * width
    grouped = lambda: nn.Sequential(*(nn.Conv2d(channels, channels, 3, padding=1, groups=groups) for _ in range(6)))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        decisions, _ = cuda_plan(grouped, (64, channels, 56, 56), dtype, train)
    assert summaries(decisions)[0] == f"layouts {chosen}"


def test_every_kind_has_a_row_of_its_own() -> None:
    kinds = get_args(Shape)
    for which in get_args(Pass):
        for shape in kinds:
            for dtype in ("bf16", "fp16", "tf32", "fp32"):
                source = find_row("cuda", 90, dtype, shape, which).source
                assert ("H200" if shape == "multiplied depthwise" else "H100") in source
                assert "measured on" not in find_row("cuda", 80, dtype, shape, which).source
            assert "EPYC" in find_row("cpu", 0, "fp32", shape, which).source
    assert find_row("xpu", 0, "fp32", "dense", "forward").native == "channels first"


def test_statistics_of_a_concatenation_are_taken_channels_first_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """DenseNet: in channels last each element of a vector may come from another part."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(16 * n, 16, 1) for n in range(1, 3))
            self.norms = nn.ModuleList(nn.BatchNorm2d(16 * n) for n in range(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = torch.cat((x, layer(torch.relu(norm(x)))), 1)
            return x.mean((2, 3))

    def planned() -> list[str]:
        """What is planned for a forward in training."""
        torch._dynamo.reset()
        with reports.collect() as collected:
            torch.compile(Dense().train(), backend="litz")(torch.randn(4, 16, 32, 32))
        return [d.chosen for one in collected for d in one.decisions if d.subject == one.name and d.plugin == "layout"]

    assert planned() == ["layouts left alone"]
    monkeypatch.setattr(costs, "STATISTICS_NS", 0.0)
    assert planned() == ["layouts planned"]


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: x.sum((0, 2, 3)), True),
        (lambda x: (torch.relu(x) * 2 + 1).sum((0, 2, 3)), True),
        (lambda x: (x * x).sum((2, 3)), False),
        (lambda x: torch.relu(x).exp(), False),
    ],
)
def test_what_takes_part_in_statistics_of_channels(compute: Callable[[Tensor], Tensor], expected: bool) -> None:
    """Whatever is computed element by element on the way to them, so that a kernel reads it for them."""
    nodes = make_fx(compute, tracing_mode="fake")(torch.randn(2, 3, 4, 5)).graph.nodes
    assert takes_part_in_statistics(next(iter(nodes))) == expected


def test_a_cpu_has_rows_by_number_of_threads() -> None:
    """With one thread torch takes a convolution of its own for what it thinks small."""
    alone, several, more = (find_row("cpu", threads, "fp32", "dense", "backward") for threads in (1, 2, 64))
    assert alone.factor < several.factor and several is more


def test_tf32_counts_as_tensor_cores() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        decisions, _ = cuda_plan(LARGE, (64, 3, 56, 56), torch.float32)
    assert summaries(decisions) == ["layouts planned"]


def test_volumes_and_u_nets() -> None:
    volume = lambda: nn.Sequential(*(nn.Conv3d(64, 64, 3, padding=1) for _ in range(3)))
    decisions, _ = cuda_plan(volume, (4, 64, 32, 32, 32))
    assert summaries(decisions) == ["layouts planned"]
    decisions, _ = cuda_plan(functools.partial(UNet, 128), (16, 3, 128, 128))
    assert summaries(decisions) == ["layouts planned"]
    assert sum(text.endswith("for output") for text in copies(decisions)) == 1


def test_a_permuted_half_shares_the_memory() -> None:
    """ConvNeXt: what is channels last by hand is not copied beside what is channels last by plan."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(ConvNextBlock(96) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x).mean((2, 3))

    class ConvNextBlock(ConvNext):
        def __init__(self, c: int) -> None:
            super().__init__(c)
            self.stem = nn.Conv2d(c, c, 3, padding=1)

    decisions, _ = cuda_plan(Deep, (64, 96, 56, 56))
    assert summaries(decisions) == ["layouts planned"]
    assert all("arg" in text for text in copies(decisions)), copies(decisions)
