"""What people put around compiled functions: graph breaks, DDP, torch.func, checkpoints, optimizers."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from support.compare import check, device_param, litz, same, t, train

# --------------------------------------------------------------------------------------------------------- graph breaks


@device_param
def test_graph_breaks_in_loops_and_branches(device: str) -> None:
    def turn(x: torch.Tensor, step: int, seen: list[float]) -> torch.Tensor:
        x = x.sin() + step
        torch._dynamo.graph_break()  # dynamo leaves a function that has one in a loop of its own to eager
        seen.append(float(x.sum()))
        return x * 2 if seen[-1] > 0 else x

    def f(x: torch.Tensor) -> torch.Tensor:
        seen = list[float]()
        for step in range(2):
            x = turn(x, step, seen)
        return x + len(seen)

    assert len(check(f, t(6, 7, device=device))) > 2


@device_param
def test_a_graph_break_between_a_write_and_a_read(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        view = x[1:]
        view.mul_(2)
        torch._dynamo.graph_break()
        y.add_(x.sum())
        torch._dynamo.graph_break()
        view.add_(y[0])
        return x + 1

    check(f, t(4, 5, device=device), t(5, device=device))


class Gate(torch.autograd.Function):
    """y = x * sigmoid(w), with a backward that is not the derivative, so that no other could give the result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gate = w.sigmoid()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, gate = ctx.saved_tensors
        return gradient * gate * 3, (gradient * x).sum(0)


@device_param
def test_autograd_function(device: str) -> None:
    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = t(4, 5, device=device).requires_grad_(), t(5, device=device).requires_grad_()
        out = fn(x, w)
        out.sum().backward()
        return [out.detach(), x.grad, w.grad]

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return Gate.apply(x.sin(), w) * 2

    same(run(litz(f, fullgraph=True)), run(f))


# ---------------------------------------------------------------------------------------------------------- distributed


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """A world of one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = torch.distributed.TCPStore("127.0.0.1", port, 1, is_master=True)
    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def mlp(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    hidden = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)
    return torch.nn.Sequential(*hidden, torch.nn.Linear(32, 4)).to(device)


@device_param
def test_data_parallel_wrapper(device: str) -> None:
    model, x = mlp(device), t(6, 16, device=device)
    expected = train(model, model, x)
    with process_group(device):
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        same(train(litz(wrapped), model, x), expected)
        inner = torch.nn.parallel.DistributedDataParallel(litz(mlp(device)))
        same(train(inner, inner, x), expected)


@device_param
def test_functional_collectives(device: str) -> None:
    import torch.distributed._functional_collectives as collectives

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        group = torch.distributed.group.WORLD
        total = collectives.all_reduce(x * 2, "sum", group)
        gathered = collectives.all_gather_tensor(x.sin(), 0, group)
        scattered = collectives.reduce_scatter_tensor(x + 1, "sum", 0, group)
        return total + 1, gathered * 2, scattered.relu()

    with process_group(device):
        check(f, t(8, 5, device=device), fullgraph=True)


# -------------------------------------------------------------------------------------------------- function transforms


@device_param
def test_vmap_and_grad(device: str) -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square().sum()

    def per_sample(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)

    def second(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hessian = torch.func.jacrev(torch.func.grad(loss))(w, x)
        _, tangent = torch.func.jvp(lambda w: loss(w, x), (w,), (torch.ones_like(w),))
        return hessian, tangent, *torch.func.grad_and_value(loss)(w, x)

    check(per_sample, t(5, device=device), t(7, 5, device=device), tolerance=4.0)
    check(second, t(5, device=device), t(7, 5, device=device), tolerance=4.0)


@pytest.mark.ci_cases("True-cpu")
@device_param
@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_in_nested_vmaps(dynamic: bool, device: str) -> None:
    """torch traces them as `_to_copy(2, dtype=torch.float32)`, of a number."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def inner(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return a * 2 + 1, 3 / a, torch.where(a > 0, a, 0.5), a.long() * 2, a.double() * 0.1

        return torch.func.vmap(torch.func.vmap(inner))(x)

    check(f, t(3, 4, device=device), dynamic=dynamic)


@device_param
def test_functional_call(device: str) -> None:
    model = mlp(device)

    def f(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,))

    parameters = {name: p.detach() * 0.5 for name, p in model.named_parameters()}
    x = t(3, 16, device=device)
    torch.testing.assert_close(litz(f)(parameters, x), f(parameters, x), rtol=1e-4, atol=1e-5)


@device_param
def test_double_backward_goes_to_eager_or_says_so(device: str) -> None:
    """AOTAutograd has no second derivative of a compiled graph: an error, never a wrong number."""
    compiled = litz(lambda x: (x.sin() * x).sum())
    x = t(5, device=device).requires_grad_()
    (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"aot_autograd|double backward"):
        first.sum().backward()


# ---------------------------------------------------------------------------------------------------------- checkpoints


@device_param
def test_activation_checkpoints(device: str) -> None:
    class Deep(torch.nn.Module):
        def __init__(self, keep: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
            self.keep = keep

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                run = lambda x, layer=layer: F.gelu(layer(x))
                x = run(x) if self.keep else checkpoint(run, x, use_reentrant=False)
            return x

    x = t(4, 8, device=device)
    plain, saving = Deep(True).to(device), Deep(False).to(device)
    same(train(litz(saving, fullgraph=True), saving, x), train(plain, plain, x))


@device_param
def test_selective_checkpoints(device: str) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return F.dropout((x @ w).sin(), 0.0) @ w

        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x, w = t(4, 6, device=device).requires_grad_(), t(6, 6, device=device).requires_grad_()
        out = fn(x, w)
        out.square().sum().backward()
        return [out.detach(), x.grad, w.grad]

    same(run(litz(f)), run(f))


# ----------------------------------------------------------------------------------------------------------- optimizers


@pytest.mark.nightly
@device_param
def test_a_whole_training_step_with_a_compiled_model_and_optimizer(device: str) -> None:
    def run(compiled: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = mlp(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run_step = torch.compile(step, backend="litz") if compiled else step
        losses = []
        for k in range(4):
            losses.append(run_step(t(6, 16, device=device) + k))
            schedule.step()
        return [*losses, *(p.detach() for p in model.parameters())]

    same(run(True), run(False))


# ------------------------------------------------------------------------------------------------ other ways to compile


@device_param
def test_compiled_autograd(device: str) -> None:
    model, x = mlp(device), t(6, 16, device=device)
    expected = train(model, model, x)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(compiled_autograd=True):
        same(train(torch.compile(model, backend="litz"), model, x), expected)


@device_param
def test_module_state_and_buffers(device: str) -> None:
    """Batch norm writes its running statistics; they follow eager's."""

    def run(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).to(device)
        fn = litz(model) if compiled else model
        for k in range(2):
            fn(t(2, 3, 8, 8, device=device) + k).sum().backward()
        model.eval()
        out = fn(t(2, 3, 8, 8, device=device))
        return [out.detach(), *model.buffers(), *(p.grad for p in model.parameters())]

    same(run(True), run(False))


@device_param
def test_hooks_and_subclasses(device: str) -> None:
    model = mlp(device)
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = t(6, 16, device=device)
    same(train(litz(model), model, x), train(model, model, x))


@device_param
def test_export_and_compile(device: str) -> None:
    model, x = mlp(device).eval(), t(6, 16, device=device)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    with torch.no_grad():
        torch.testing.assert_close(litz(exported)(x), model(x), rtol=1e-4, atol=1e-5)


triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n
    tl.store(out + offset, tl.load(x + offset, inside) + tl.load(y + offset, inside), inside)


@triton.jit
def double_kernel_(x, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offset, tl.load(x + offset, offset < n) * 2, offset < n)


def with_triton_kernels(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.sin()
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 128),)](x, y, out, n, BLOCK=128)
    double_kernel_[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](y, n, BLOCK=64)
    return out.cos(), y + 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dynamic", [False, True])
def test_triton_kernels_of_the_user(dynamic: bool) -> None:
    check(with_triton_kernels, t(30, 20, device="cuda"), t(30, 20, device="cuda"), fullgraph=True, dynamic=dynamic)


def test_triton_kernels_of_the_user_are_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: captured, lowered and scheduled, between the kernels that they depend on."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from litz.ir import KernelCall
    from litz.pipeline import schedule_only

    torch._dynamo.reset()
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)  # else dynamo does not look for kernels
    with FakeTensorMode():
        x, y = torch.empty(30, 20, device="cuda"), torch.empty(30, 20, device="cuda")
    # y * 1: fake CUDA tensors cannot be written in place where torch was built without CUDA
    (schedule,) = schedule_only(lambda x, y: with_triton_kernels(x, y * 1), (x, y))
    assert [step.target_name for step in schedule.steps if isinstance(step, KernelCall)] == [
        "add_kernel",
        "double_kernel_",
    ]
