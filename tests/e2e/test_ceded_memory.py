"""Training under CUDA graphs on a GPU, where a backward takes the memory of what its forward saved for it: what that
saves, and what nobody may notice. `tests/cudagraphs/test_ceding.py` has more of it, without a GPU."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litz_cudagraphs import recordings, torch_memory
from support.compare import NO_GPU

pytestmark = [pytest.mark.gpu, NO_GPU]
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="litz", mode="reduce-overhead")


def ceded() -> int:
    """How many pieces of memory recordings were ceded."""
    return sum(len(recording.memory.ceded) for _, _, recording in recordings._all_recordings())


class Net(nn.Module):
    """breaks: between its halves are graph breaks, so that two forwards come before the first backward."""

    def __init__(self, width: int = 64, breaks: bool = False) -> None:
        super().__init__()
        halves = (nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(4))
        self.halves, self.breaks = nn.ModuleList(halves), breaks

    def forward(self, x: Tensor) -> Tensor:
        for half in self.halves:
            x = half(x) + x.sin()
            if self.breaks:
                torch._dynamo.graph_break()
        return x


Run = Callable[[Tensor], Tensor]


def loss_of(run: Run, x: Tensor) -> Tensor:
    return run(x).square().mean()


def one_by_one(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    for x in pair:
        loss_of(run, x).backward()
    return []


def both_forwards_first(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    for loss in reversed([loss_of(run, x) for x in pair]):
        loss.backward()
    return []


def backward_twice(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    loss = loss_of(run, pair[0])
    loss.backward(retain_graph=number % 3 != 0)
    other = loss_of(run, pair[1])
    if number % 3:
        loss.backward()
    other.backward()
    return []


def without_a_backward(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    held = run(pair[0])
    loss_of(run, pair[1]).backward()
    return [held.detach().clone()]


def results_held(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    outputs = [run(x) for x in pair]
    for out in outputs:
        out.square().mean().backward(retain_graph=True)
    return [out.detach() for out in outputs]


def gradients_held(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    parameters = list(net.parameters())
    return [grad for x in pair for grad in torch.autograd.grad(loss_of(run, x), parameters)]


def hooks(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    if number % 2:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(run, pair[0])
    else:
        with torch.autograd.graph.save_on_cpu():
            loss = loss_of(run, pair[0])
    before = [tensor.detach().clone() for tensor in held]
    loss.backward()
    assert all(torch.equal(a, b) for a, b in zip(before, held, strict=True))
    loss_of(run, pair[1]).backward()
    return []


def an_input_that_moves(run: Run, net: Net, pair: list[Tensor], number: int) -> list[Tensor]:
    x = pair[0].clone() if number % 3 else pair[0]
    run(x).backward(torch.full_like(x, 1e-4) if number % 4 else pair[1] * 1e-4)
    return []


ORDERS = (
    one_by_one,
    both_forwards_first,
    backward_twice,
    without_a_backward,
    results_held,
    gradients_held,
    hooks,
    an_input_that_moves,
)


def trained(run: Run, net: Net, inputs: list[Tensor], order: Any) -> list[Tensor]:
    """Gradients, and whatever a step holds, which is looked at in the end only."""
    held: list[Tensor] = []
    for number, pair in enumerate(zip(inputs[::2], inputs[1::2], strict=True)):
        net.zero_grad(set_to_none=number % 3 == 0)
        held += order(run, net, list(pair), number)
        held += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return held


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_forwards_and_backwards(order: Any, breaks: bool) -> None:
    net = Net(breaks=breaks).to(CUDA)
    exact = Net().to(CUDA).double()
    exact.load_state_dict(net.state_dict())
    inputs = [torch.randn(128, 64, device=CUDA) for _ in range(24)]
    found = trained(recorded(net), net, inputs, order)
    expected = trained(exact, exact, [x.double() for x in inputs], order)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_any_order(seed: int) -> None:
    """Two networks, whose recordings share memory, one after the other and alone."""
    choose = random.Random(seed)
    nets = [Net(breaks=number == 1).to(CUDA) for number in range(2)]
    exact = [Net().to(CUDA).double() for _ in nets]
    for ours, theirs in zip(nets, exact, strict=True):
        theirs.load_state_dict(ours.state_dict())
    run = [recorded(net) for net in nets]
    held: list[tuple[Tensor, Tensor]] = []
    losses: list[tuple[Tensor, Tensor, list[Tensor], list[Tensor]]] = []
    for number in range(120):
        what = choose.choice(("forward", "chain", "back", "back", "back", "keep", "drop", "drop all"))
        if what in ("forward", "chain"):
            which = [0, 1] if what == "chain" else [choose.randrange(2)]
            x = torch.randn(128, 64, device=CUDA)
            ours, theirs = x, x.double()
            for n in which:
                ours, theirs = run[n](ours), exact[n](theirs)
            held.append((ours, theirs))
            of = [list(itertools.chain(*(group[n].parameters() for n in which))) for group in (nets, exact)]
            losses.append((ours.square().mean(), theirs.square().mean(), *of))
        elif what in ("back", "keep") and losses:
            at, kept = choose.randrange(len(losses)), what == "keep"
            ours, theirs, mine, others = losses[at]
            found = torch.autograd.grad(ours, mine, retain_graph=kept)
            held += zip(found, torch.autograd.grad(theirs, others, retain_graph=kept), strict=True)
            del found, ours, theirs
            if not kept:
                del losses[at]
        elif what == "drop":
            del held[choose.choice((0, 2, 4)) :]
        elif what == "drop all":
            held.clear()
            losses.clear()
        for a, b in held:
            text = lambda text, n=number: f"step {n}: {text}"
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5, msg=text)


def test_what_is_saved_outlives_the_recordings() -> None:
    net = Net(256).to(CUDA)
    run = recorded(net)
    inputs = [torch.randn(512, 256, device=CUDA) for _ in range(4)]
    for x in inputs:
        net.zero_grad(set_to_none=True)
        loss_of(run, x).backward()
    assert ceded()
    net.zero_grad(set_to_none=True)
    loss = loss_of(run, inputs[0])
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 18,), float("nan"), device=CUDA) for _ in range(64)]
    loss.backward()
    del others
    found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad(set_to_none=True)
    loss_of(net, inputs[0]).backward()
    torch.testing.assert_close(found, [p.grad for p in net.parameters() if p.grad is not None], rtol=1e-4, atol=1e-5)


def linears(*widths: int) -> tuple[nn.Module, Tensor]:
    layers = (nn.Sequential(nn.Linear(*pair), nn.GELU()) for pair in itertools.pairwise(widths))
    return nn.Sequential(*layers).to(CUDA), torch.randn((1 << 24) // max(widths), widths[0], device=CUDA)


def taken(net: nn.Module, x: Tensor, mode: str) -> tuple[int, int]:
    """Bytes that a step takes at most, and that are reserved after it. A step as long trainings have it: the gradients
    are gone before the next forward."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    reserved, before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    run = torch.compile(lambda x: net(x).square().mean(), backend="litz", mode=mode)
    for _ in range(4):
        net.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        run(x).backward()
    torch.cuda.synchronize()
    net.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_reserved() - reserved


@pytest.mark.parametrize("width", [64, 1024], ids=["activations", "weights"])
def test_a_step_needs_no_more_memory_than_without_recordings(width: int) -> None:
    net, x = linears(*[width] * 9)
    plain, _ = taken(net, x, "default")
    _, recorded = taken(net, x, "reduce-overhead")
    assert ceded() and recorded < 1.08 * plain


def test_blocks_of_many_sizes_share_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = random.Random(0)
    net, x = linears(*[16 * sizes.randint(8, 40) for _ in range(33)])
    _, together = taken(net, x, "reduce-overhead")
    monkeypatch.setattr(recordings, "take_segment", lambda nbytes: None)
    _, apart = taken(net, x, "reduce-overhead")
    assert together < 0.99 * apart


@pytest.mark.parametrize("nbytes", [1 << 30, 1 << 50])
def test_memory_in_one_piece_is_the_recordings(nbytes: int) -> None:
    """More than the GPU has is not taken, and does not end the recording."""
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(1 << 20, device=CUDA)
    assert torch_memory.unused_bytes(pool) == 0, "a pool that nothing has used"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
        torch_memory.take_segment(nbytes)
        y = x + 1
    had = torch_memory.unused_bytes(pool)
    assert (nbytes - y.nbytes <= had < nbytes) if nbytes == 1 << 30 else had < 32 << 20
    graph.replay()
    assert y.sum().item() == 2 << 20
