"""What people put around and into compiled functions: graph breaks, DDP, torch.func, checkpoints, custom ops, HOPs."""

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

from support.compare import DEVICES, check

device_param = pytest.mark.parametrize("device", DEVICES)


def t(*size: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(size) + len(size))
    return torch.randn(size, device=device).to(dtype)


def litz(fn: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="litz", **options)


def train(model: Callable[..., Any], module: torch.nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The loss and every gradient of one step."""
    module.zero_grad()
    loss = model(*inputs).square().mean()
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def same(ours: Any, theirs: Any) -> None:
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------------- graph breaks


@device_param
def test_graph_breaks_in_loops_and_branches(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        seen = []
        for step in range(3):
            x = x.sin() + step
            torch._dynamo.graph_break()
            seen.append(float(x.sum()))
            if seen[-1] > 0:
                x = x * 2
        return x + len(seen)

    check(f, t(6, 7, device=device))


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


# ----------------------------------------------------------------------------------------------------------- custom ops


@torch.library.custom_op("litz_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("litz_test::increment_", mutates_args=("x",))
def increment_(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.custom_op("litz_test::swap_and_count_", mutates_args=("a", "b"))
def swap_and_count_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)
    return torch.tensor(a.numel(), device=a.device)


@swap_and_count_.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=a.device)


@torch.library.custom_op("litz_test::several", mutates_args=())
def several(xs: list[torch.Tensor], k: int | None = None, name: str = "") -> tuple[list[torch.Tensor], torch.Tensor]:
    return [x + (k or 0) for x in xs], torch.stack([x.sum() for x in xs])


@several.register_fake
def _(xs: list[torch.Tensor], k: int | None = None, name: str = "") -> tuple[list[torch.Tensor], torch.Tensor]:
    return [torch.empty_like(x) for x in xs], xs[0].new_empty(len(xs))


@torch.library.custom_op("litz_test::chosen", mutates_args=())
def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@chosen.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


STRIDES: list[tuple[int, ...]] = []
"""What the ops below were called with."""


def _define(name: str, *tags: torch.Tag) -> Any:
    """An op that notes the strides of what it is called with."""
    lib = torch.library.Library("litz_test", "FRAGMENT")
    lib.define(f"{name}(Tensor x) -> Tensor", tags=tags)

    def run(x: torch.Tensor) -> torch.Tensor:
        STRIDES.append(x.stride())
        return x.clone(memory_format=torch.contiguous_format)

    lib.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(
        f"litz_test::{name}", lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device), lib=lib
    )
    return lib


LIBRARIES = [
    _define("exact", torch.Tag.needs_exact_strides),
    _define("fixed", torch.Tag.needs_fixed_stride_order),
    _define("dense", torch.Tag.needs_contiguous_strides),
    _define("flexible", torch.Tag.flexible_layout),
    _define("untagged"),
]


@device_param
def test_custom_op_forward_and_backward(device: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return scale(x.sin(), 2.5).cos()

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        x = t(4, 5, device=device).requires_grad_()
        out = fn(x)
        out.sum().backward()
        return [out.detach(), x.grad]

    same(run(litz(f, fullgraph=True)), run(f))


@device_param
def test_custom_ops_that_write(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * 2
        increment_(z, y)
        increment_(z[1:], y)
        increment_(x, y + 1)
        increment_(x.t()[1], y[:1])
        count = swap_and_count_(x, z)
        return z + x, z.sin(), count + 1

    check(f, t(4, 5, device=device), t(5, device=device), fullgraph=True)
    check(f, t(5, 4, device=device).t(), t(5, device=device), fullgraph=True)


@device_param
def test_custom_ops_with_lists_and_data_dependent_sizes(device: str) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        (a, b), sums = several([x + 1, y.t()], 3, "name")
        found = chosen(x)
        return a * 2, b.sin(), sums + 1, found * 2, found.sum(), several([y])

    check(f, t(4, 5, device=device), t(3, 6, device=device), fullgraph=True)


@device_param
@pytest.mark.parametrize("name", ["exact", "fixed", "dense", "flexible", "untagged"])
def test_custom_ops_get_the_strides_they_ask_for(name: str, device: str) -> None:
    """As in eager, of inputs, of views and of what the graph computes; `dense` wants contiguous ones."""
    op = getattr(torch.ops.litz_test, name)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x * 2).transpose(0, 2)
        return (
            op(x.permute(2, 0, 1)),
            op(y),
            op(y[:, ::2]),
            op((x + 1).contiguous(memory_format=torch.contiguous_format)),
        )

    x = t(4, 6, 5, device=device)
    STRIDES.clear()
    expected = f(x)
    wanted = list(STRIDES)
    STRIDES.clear()
    actual = litz(f, fullgraph=True)(x)
    same(actual, expected)
    if name == "dense":
        assert [a.contiguous().stride() for a in expected] == STRIDES
    elif name == "exact":
        assert wanted == STRIDES
    elif name != "flexible":
        order = lambda stride: sorted(range(len(stride)), key=lambda n: -stride[n])
        assert [order(s) for s in STRIDES] == [order(s) for s in wanted]


# ----------------------------------------------------------------------------------------------------- higher-order ops


@device_param
def test_cond(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        yes, no = lambda y: (y @ w).sin() + x.sum(), lambda y: y.cos() @ w - 1
        return torch.cond(y.sum() > 0, yes, no, (y,)) * 3

    for sign in (1, -1):
        check(f, t(4, 5, device=device).abs() * sign, t(5, 5, device=device), fullgraph=True)


@device_param
def test_cond_under_autograd(device: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin(), lambda x, w: x + w * 2, (x, w)).exp()

    def run(fn: Callable[..., Any], sign: int) -> list[torch.Tensor]:
        x, w = (t(4, 5, device=device).abs() * sign).requires_grad_(), t(5, device=device).requires_grad_()
        out = fn(x, w)
        out.sum().backward()
        return [out.detach(), x.grad, w.grad]

    compiled = litz(f, fullgraph=True)
    for sign in (1, -1):
        same(run(compiled, sign), run(f, sign))


@device_param
def test_while_loop(device: str) -> None:
    from torch._higher_order_ops import while_loop

    def f(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = x.mean()
        number, y = while_loop(lambda n, y: n > 0, lambda n, y: (n - 1, y * 0.5 + scale), (count, x * 2))
        return number + 1, y.sin()

    for n in (0, 1, 7):
        check(f, t(4, 5, device=device), torch.tensor(n, device=device), fullgraph=True)


@device_param
def test_scan_and_associative_scan(device: str) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan

    def running(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state * 0.9 + x
        return state, state.sin()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last, each = scan(running, torch.zeros_like(x[0]), x * 2, dim=0)
        return last + 1, each * 3

    def g(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + a, x + 1, dim=0, combine_mode="generic") * 2

    check(f, t(6, 5, device=device), fullgraph=True)
    check(g, t(6, 5, device=device), fullgraph=True)


@device_param
def test_flex_attention(device: str) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    mask = create_block_mask(causal, 1, 1, 64, 64, device=device)
    slopes = torch.tensor([0.5, 0.25], device=device)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bias = lambda score, b, h, i, j: score + slopes[h] * (j - i)
        return flex_attention(q * 2, k, v, score_mod=bias, block_mask=mask) + 1

    def run(fn: Callable[..., Any]) -> list[torch.Tensor]:
        q, k, v = (t(1, 2, 64, 16, device=device).add(n).requires_grad_(device == "cuda") for n in range(3))
        out = fn(q, k, v)
        if device == "cpu":  # torch has no backward of it there
            return [out]
        out.square().mean().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    for dynamic in (False, True):
        same(run(litz(f, dynamic=dynamic)), run(f))


@device_param
def test_map_and_nested_compile_regions(device: str) -> None:
    from torch._higher_order_ops.map import map as torch_map

    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() + x

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = block(x, w)
        return torch_map(lambda row, w: (row * 2).sin() + w.sum(), x, w)

    check(f, t(4, 5, device=device), t(5, 5, device=device), fullgraph=True)


# ----------------------------------------------------------------------------------------------------------- optimizers


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

    from litz.pipeline import schedule_only

    torch._dynamo.reset()
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)  # else dynamo does not look for kernels
    with FakeTensorMode():
        x, y = torch.empty(30, 20, device="cuda"), torch.empty(30, 20, device="cuda")
    # y * 1: fake CUDA tensors cannot be written in place where torch was built without CUDA
    (schedule,) = schedule_only(lambda x, y: with_triton_kernels(x, y * 1), (x, y))
    names = [step.target_name for step in schedule.externs]
    assert sum("triton_kernel_wrapper" in name for name in names) == 2
