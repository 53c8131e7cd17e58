"""Layouts change speed and nothing else: values, strides of outputs, mutations, graph breaks and DDP stay as in eager.

The cases are those of the seed document test_layout_optim, on the CPU with a gloo group of one, and on a GPU with NCCL
where there is one. Each runs as litz-layout decides, and with channels last forced on every convolution. What was
planned is asserted by the decisions on record and by the strides that convolutions get (`check_plans`). On a GPU
convolutions of float32 are in TF32, as torch has it, but where the seed switches that off or a test compares values to
their last digits.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import same

pytest.importorskip("litz_layout")

import litz_layout
from litz.backend import backend_with
from litz.errors import FrozenWeightsError
from litz.ir import Extern, Layout
from litz.report import CompileReport, collect
from litz_plugins import hookimpl

aten = torch.ops.aten
HAS_GPU = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["by cost", "forced"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"layout.force": request.param}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Layouts chosen, torch's own precision, and nothing that another test compiled."""
    monkeypatch.setenv("LITZ_LAYOUT_ENABLE", "1")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


@pytest.fixture
def tf32_off(settings: None) -> Iterator[None]:
    """Convolutions of float32 in float32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def group(device: str, tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/rendezvous", world_size=1, rank=0)
    yield
    dist.destroy_process_group()


def convolutions_of(report: CompileReport) -> list[Extern]:
    """The calls of convolutions, forward and backward, that a graph runs."""
    calls = [step for step in report.plan.steps if isinstance(step, Extern)]
    return [step for step in calls if step.target_name.startswith("aten.convolution")]


def lies_last(layout: Layout) -> bool | None:
    """Whether a tensor lies channels last; None where that is all the same, or elements share memory."""
    if len(layout.size) != 4 or layout.size[1] == 1 or layout.size[2:] == (1, 1) or 0 in layout.stride:
        return None
    return bool(layout.stride[1] == 1)


def check_plans(reports: Sequence[CompileReport], options: dict[str, Any], copies: Sequence[int]) -> None:
    """What was planned for each graph with a convolution is on record, and is what its convolutions get.

    copies: of each such graph, the copies that channels last everywhere takes, in any order.
    """
    made: list[int] = []
    for report in reports:
        decisions = [decision for decision in report.decisions if decision.plugin == "layout"]
        convolutions = convolutions_of(report)
        if not convolutions:
            assert not decisions, "a graph without convolutions has nothing to choose"
            continue
        (summary,) = (decision for decision in decisions if decision.subject == report.name)
        strides = [decision.subject for decision in decisions if decision.chosen.startswith("strides")]
        copied = [decision.subject for decision in decisions if decision.chosen.startswith("copied")]
        buffers = report.plan.program.buffers
        labels = [
            {
                lies_last(layout)
                for layout in (*(ref.layout for ref in step.refs), *(buffers[name].layout for name in step.writes))
            }
            - {None}
            for step in convolutions
        ]
        if summary.chosen == "layouts left alone":
            assert not options["layout.force"] and not strides and not copied
            assert dict(summary.considered).keys() == {"as traced", "planned"} and summary.reason
            assert labels == [{False}] * len(convolutions)
            continue
        assert summary.chosen == "layouts planned"
        found = re.match(r"(\d+) of (\d+) convolutions channels last, (\d+) copies; (.*)", summary.reason)
        assert found is not None, summary.reason
        assert int(found[2]) == len(convolutions) and int(found[3]) <= len(copied)
        assert labels.count({True}) == int(found[1]) and labels.count({False}) == len(convolutions) - int(found[1])
        if options["layout.force"]:
            assert found[1] == found[2] and found[4] == "by layout.force"
            made.append(int(found[3]))
        else:
            costs = dict(summary.considered)
            assert costs["planned"] < costs["as traced"] and "surely saved" in found[4]
    if options["layout.force"]:
        assert sorted(made) == sorted(copies)


class Model2Conv(nn.Module):
    def __init__(self, dim: int = 512, manual_graph_break: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, dim, kernel_size=3, stride=2, bias=False)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, stride=2, bias=False)
        self.manual_graph_break = manual_graph_break

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x)
        if self.manual_graph_break:
            torch._dynamo.graph_break()
        return self.conv2(x)

    def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.rand(2, 3, 16, 16),)


def gradients(module: nn.Module) -> Callable[..., list[torch.Tensor]]:
    """A training step: the gradients of all parameters."""

    def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
        module(*inputs).sum().backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]

    return step


def verify_accuracy(
    model_class: Callable[..., nn.Module],
    device: str,
    options: dict[str, Any],
    ddp: bool,
    is_train: bool,
    copies: Sequence[int],
    broken: bool = True,
) -> None:
    """Compiled against eager, judged by float64; the graph breaks by hand or, with `ddp`, where DDP makes it. copies:
    as `check_plans` takes them. broken: False for a model that is one graph.

    cuDNN may have TF32 for a convolution channels last only (an H200's has, for conv1's forward and conv2's gradient of
    its input), so where TF32 is on, results that are as near to float64 as eager's channels last are right as well.
    """
    wrap: Callable[..., Any] = gradients if is_train else lambda module: module
    mod = model_class(manual_graph_break=broken and not ddp).to(device)
    inputs = [t.to(device) for t in mod.get_example_inputs()]
    fresh, double = copy.deepcopy(mod), copy.deepcopy(mod).double()
    moved = copy.deepcopy(mod).to(memory_format=torch.channels_last)
    expected = wrap(mod)(*inputs)
    exact = wrap(double)(*[t.double() for t in inputs])
    subject: nn.Module = nn.parallel.DistributedDataParallel(fresh) if ddp else fresh
    with collect() as reports:
        actual = torch.compile(wrap(subject), backend="litz", options=options)(*inputs)
    check_plans(reports, options, copies)
    right = same(expected, actual, fp64_ref=exact)
    if not right and device == "cuda" and torch.backends.cudnn.allow_tf32:
        expected_there = wrap(moved)(*[t.to(memory_format=torch.channels_last) for t in inputs])
        right = same(expected_there, actual, fp64_ref=exact)
    assert right
    leaves = zip(actual, expected) if is_train else [(actual, expected)]
    assert all(a.stride() == e.stride() for a, e in leaves)


@pytest.fixture(params=[True, False], ids=["ddp", "graph_break"])
def ddp(request: pytest.FixtureRequest) -> bool:
    if request.param:
        request.getfixturevalue("group")
    return bool(request.param)


@pytest.mark.each_value
class TestLayoutOptim:
    def test_2conv_with_graph_break(self, device: str, options: dict[str, Any], ddp: bool) -> None:
        """Layouts that cross a graph break cost no accuracy."""
        verify_accuracy(Model2Conv, device, options, ddp, is_train=False, copies=[3, 3])

    def test_3conv_with_graph_break(self, device: str, options: dict[str, Any], ddp: bool) -> None:
        class Model(nn.Module):
            def __init__(
                self, dim: int = 512, patch_size: int = 7, kernel_size: int = 7, manual_graph_break: bool = False
            ) -> None:
                super().__init__()
                self.seq = nn.Sequential(
                    nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size, bias=False),
                    nn.Conv2d(dim, dim, kernel_size, groups=dim, padding="same", bias=False),
                )
                self.conv = nn.Conv2d(dim, dim, kernel_size=1, bias=False)
                self.manual_graph_break = manual_graph_break

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.seq(x)
                if self.manual_graph_break:
                    torch._dynamo.graph_break()
                return self.conv(x)

            def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
                return (torch.randn(2, 3, 16, 16),)

        # A weight of one channel a group lies alike in both layouts; and so does one of a pixel.
        verify_accuracy(Model, device, options, ddp, is_train=False, copies=[3, 2])

    @pytest.mark.usefixtures("tf32_off")
    @torch.no_grad()
    def test_keep_output_layout_infer(self, device: str, options: dict[str, Any]) -> None:
        keep_output_layout(device, options)

    @pytest.mark.usefixtures("tf32_off")
    @torch.no_grad()
    def test_keep_output_layout_with_freezing(self, device: str, options: dict[str, Any]) -> None:
        conv, compiled, x = keep_output_layout(device, {**options, "freezing": True})
        conv.weight.mul_(2)
        with pytest.raises(FrozenWeightsError):  # the weight was a constant of the code
            compiled(x)

    def test_training_acc(self, device: str, options: dict[str, Any], ddp: bool) -> None:
        verify_accuracy(Model2Conv, device, options, ddp, is_train=True, copies=[3, 3, 5, 4])

    def test_training_acc_in_one_graph(self, device: str, options: dict[str, Any]) -> None:
        """What the forward saves channels last the backward reads so: it is told how it lies, and copies nothing."""
        verify_accuracy(Model2Conv, device, options, False, is_train=True, copies=[3, 5], broken=False)

    def test_mutate_view(self, device: str, options: dict[str, Any]) -> None:
        """A write through a view reaches the input."""

        def f(x: torch.Tensor) -> None:
            x.view(3, 2).mul_(2)

        x = torch.ones(2, 3, device=device)
        with collect() as reports:
            torch.compile(f, backend="litz", options=options)(x)
        assert len(reports) == 1
        check_plans(reports, options, [])
        assert torch.equal(x, torch.full((2, 3), 2.0, device=device))

    def test_mutate_base(self, device: str, options: dict[str, Any]) -> None:
        """A view that was taken before a write sees it."""

        def f(x: torch.Tensor) -> torch.Tensor:
            y = x.view(3, 2)
            x.mul_(2)
            return y

        x = torch.ones(2, 3, device=device)
        with collect() as reports:
            y = torch.compile(f, backend="litz", options=options)(x)
        assert len(reports) == 1
        check_plans(reports, options, [])
        assert torch.equal(y, torch.full((3, 2), 2.0, device=device))
        assert torch.equal(x, torch.full((2, 3), 2.0, device=device))

    @pytest.mark.usefixtures("tf32_off")
    def test_mutate_base_for_conv_output(self, device: str, options: dict[str, Any], ddp: bool) -> None:
        """A view of a convolution's result, which is then written."""

        class Model(nn.Module):
            def __init__(self, manual_graph_break: bool = False) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 512, kernel_size=3, stride=2, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.conv(x)
                y = x.view(-1)
                x.mul_(2)
                return y

            def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
                return (torch.rand(2, 3, 16, 16),)

        verify_accuracy(Model, device, options, ddp, is_train=False, copies=[2])

    @pytest.mark.usefixtures("tf32_off")
    def test_mutate_view_for_conv_output(self, device: str, options: dict[str, Any], ddp: bool) -> None:
        """A convolution's result, written through a view of it."""

        class Model(nn.Module):
            def __init__(self, manual_graph_break: bool = False) -> None:
                super().__init__()
                self.conv = nn.Conv2d(3, 512, kernel_size=3, stride=2, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.conv(x)
                y = x.view(-1)
                y.mul_(2)
                return x

            def get_example_inputs(self) -> tuple[torch.Tensor, ...]:
                return (torch.rand(2, 3, 16, 16),)

        verify_accuracy(Model, device, options, ddp, is_train=False, copies=[2])

    def test_dynamic_shape_specialization(self, device: str, options: dict[str, Any]) -> None:
        def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.sin() + b.cos()

        with collect() as reports:
            for size in [4, 8, 16]:
                a = torch.randn(2, size, requires_grad=True, device=device)
                b = torch.randn(2, size, device=device)
                actual = torch.compile(f, backend="litz", dynamic=True, options=options)(a, b)
                torch.testing.assert_close(actual, f(a, b))
                actual.sum().backward()
                torch.testing.assert_close(a.grad, a.detach().cos())
        kinds = sorted(report.name.rpartition("_")[2] for report in reports)
        assert kinds == ["backward", "forward"], "one compile of each for all sizes"
        check_plans(reports, options, [])

    @pytest.mark.usefixtures("tf32_off")
    @pytest.mark.parametrize("called", [False, True], ids=["decomposed", "called"])
    def test_nll_loss_backward(self, device: str, options: dict[str, Any], called: bool) -> None:
        """Ops that take contiguous tensors get them: pytorch issue 120759.

        litz computes the loss in loops of its own, which read any strides; `called` leaves the library's calls."""

        class MyModel(nn.Module):
            def __init__(self, input_dim: int, num_classes: int) -> None:
                super().__init__()
                self.conv = nn.Conv2d(1, num_classes, 3, 1, padding="same")
                self.out = nn.Linear(input_dim * num_classes, num_classes)

            def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                x = self.conv(x)
                b, c, t, f = x.size()
                x = self.out(x.reshape(b, t, c * f))
                logits = x.reshape(x.size(0), x.size(2), x.size(1))
                return torch.nn.functional.cross_entropy(logits, targets)

        batch_size, seq_len, input_dim, num_classes = (48, 144, 39, 111) if device == "cuda" else (6, 48, 13, 37)
        model = MyModel(input_dim, num_classes).to(device)
        x = torch.ones((batch_size, 1, seq_len, input_dim), device=device)
        targets = torch.randint(0, num_classes - 1, (batch_size, seq_len), device=device)
        check_loss(model, x, targets, options, BOTH if called else (), copies=[1, 1])

    @pytest.mark.usefixtures("tf32_off")
    @pytest.mark.parametrize("both", [True, False], ids=["both", "backward"])
    def test_nll_loss_backward_of_a_convolution(self, device: str, options: dict[str, Any], both: bool) -> None:
        """The loss of what a convolution gives, a class to each pixel. The backward alone gets what loops of litz's
        saved for it, channels last."""

        class Segmented(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.conv = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)

            def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                return torch.nn.functional.cross_entropy(self.conv(self.first(x).relu()), targets)

        x, targets = torch.randn(2, 3, 12, 10, device=device), torch.randint(0, 8, (2, 8, 6), device=device)
        check_loss(Segmented().to(device), x, targets, options, BOTH if both else BOTH[1:], copies=[3, 5])


BOTH = (aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default)


class _Called:
    """A plugin that leaves calls to torch's library, as they would be without a decomposition."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self.ops = ops

    @hookimpl
    def litz_register_decompositions(self) -> dict[Any, None]:
        return dict.fromkeys(self.ops)


def check_loss(
    model: nn.Module,
    x: torch.Tensor,
    targets: torch.Tensor,
    options: dict[str, Any],
    called: Sequence[Any],
    copies: Sequence[int],
) -> None:
    """A loss and its gradients against eager's. called: what the library does, whose arguments lie row-major."""
    fresh = copy.deepcopy(model)
    ref = model(x, targets)
    ref.backward()
    backend: Any = backend_with(layout=litz_layout, called=_Called(called)) if called else "litz"
    with collect() as reports:
        loss = torch.compile(fresh, backend=backend, options=options)(x, targets)
        loss.backward()
    torch.testing.assert_close(loss, ref)
    for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    check_plans(reports, options, copies)
    calls = [step for report in reports for step in report.plan.steps if isinstance(step, Extern)]
    losses = [step for step in calls if "nll_loss2d" in step.target_name]
    assert [step.target for step in losses] == list(called)
    for step in losses:
        assert all(ref.layout.is_contiguous() for ref in step.refs if len(ref.layout.size) == 4), step.target_name


def keep_output_layout(
    device: str, options: dict[str, Any]
) -> tuple[nn.Conv2d, Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """What `view` can do with eager's output it can do with litz's: the output is not channels last. Gives the module,
    its compiled twin and the input."""
    conv = nn.Conv2d(3, 128, kernel_size=3, padding=1, stride=1, bias=False).to(device)
    x = torch.randn(2, 3, 5, 5, device=device)
    out = conv(x)
    compiled = torch.compile(conv, backend="litz", options=options)
    with collect() as reports:
        opt_out = compiled(x)
    check_plans(reports, options, [3])
    torch.testing.assert_close(opt_out.view(5, -1), out.view(5, -1))
    assert opt_out.stride() == out.stride()
    return conv, compiled, x
