"""CUDA graphs on a GPU: what callers hold keeps its values, whatever is called after it."""

from __future__ import annotations

import gc
import itertools
import queue
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.device_time import trace
from torch import Tensor, nn

from litz_cudagraphs import recordings
from support.compare import NO_GPU

pytestmark = [pytest.mark.gpu, NO_GPU]
CUDA = torch.device("cuda", 0)


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="litz", mode="reduce-overhead")


def rows(count: int, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(16, 32, device=CUDA) for _ in range(count)]


HOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda out: out,
    "view": lambda out: out[3:, ::2],
    "detached": lambda out: out.detach().t(),
    "written": lambda out: out.add_(1),
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=list(HOLDS))
@pytest.mark.parametrize("from_call", [0, 1, 2, 4])
def test_what_is_held_keeps_its_values(hold: Callable[[Tensor], Tensor], from_call: int) -> None:
    """from_call: outputs of calls before it are dropped, so that memory has been lent by then."""
    run = recorded(lambda x: (x.sin() * 2, x.sum(1)))
    held: list[tuple[Tensor, Tensor]] = []
    for number, x in enumerate(rows(9)):
        first, second = run(x)
        if number >= from_call:
            held += [(hold(first), hold(x.sin() * 2)), (second, x.sum(1))]
        del first, second
    for found, expected in held:
        torch.testing.assert_close(found, expected)


def test_dropped_outputs_and_inputs_that_stay_cost_no_copy() -> None:
    run = recorded(lambda x, y: (x.sin() + y, (x * y).cos()))
    x, y = rows(2)
    for _ in range(4):
        run(x, y)
    assert recordings.count() == 1
    assert len(trace(lambda: run(x, y), CUDA)) <= 2


def test_a_state_that_is_handed_on() -> None:
    run = recorded(lambda s, x: (s * 0.5 + x).tanh())
    state = expected = torch.zeros(16, 32, device=CUDA)
    for x in rows(8):
        state = run(state, x)
        expected = (expected * 0.5 + x).tanh()
    torch.testing.assert_close(state, expected)


def test_an_input_that_is_written() -> None:
    def step(cache: Tensor, x: Tensor) -> Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum(0)

    run = recorded(step)
    for moving in (False, True):
        found = expected = torch.zeros(16, 32, device=CUDA)
        found = found.clone()
        expected = expected.clone()
        for x in rows(7):
            if moving:
                found = found.clone()
            torch.testing.assert_close(run(found, x), step(expected, x))
            torch.testing.assert_close(found, expected)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) - x).square().mean()


def gradients(net: nn.Module, run: Callable[[Tensor], Tensor], inputs: list[Tensor], order: str) -> list[Tensor]:
    """Of all parameters after steps in some order of forwards and backwards."""
    found: list[Tensor] = []
    for number in range(0, len(inputs), 2):
        pair = inputs[number : number + 2]
        net.zero_grad(set_to_none=number % 4 == 0)
        if order == "one by one":
            for x in pair:
                run(x).backward()
        elif order == "both forwards first":
            losses = [run(x) for x in pair]
            for loss in reversed(losses):
                loss.backward()
        else:
            loss = run(pair[0])
            loss.backward(retain_graph=True)
            run(pair[1])
            loss.backward()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return found


@pytest.mark.parametrize("order", ["one by one", "both forwards first", "backward twice"])
def test_training(order: str) -> None:
    torch.manual_seed(0)
    net = Net().to(CUDA)
    exact = Net().to(CUDA).double()
    exact.load_state_dict(net.state_dict())
    inputs = rows(12)
    found = gradients(net, recorded(net), inputs, order)
    expected = gradients(exact, exact, [x.double() for x in inputs], order)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_a_backward_reads_what_the_forward_saved() -> None:
    """Tensors of 16 MiB are saved: no step copies them."""
    net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]).to(CUDA)
    run = recorded(lambda x: net(x).square().mean())
    x = torch.randn(65536, 64, device=CUDA)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        run(x).backward()

    for _ in range(6):
        step()
    assert recordings.count() >= 2
    copies = [kernel for kernel in trace(step, CUDA) if "Memcpy DtoD" in kernel.name and kernel.us > 5]
    assert not copies


def test_many_recordings_in_any_order() -> None:
    """What is held of one recording is right whatever others do in the memory that they share."""
    functions: list[Callable[[Tensor], tuple[Tensor, ...]]] = [
        lambda x: (x.sin(), (x * 2).sum(0)),
        lambda x: ((x @ x.t()).softmax(-1), x.t().contiguous().cos()),
        lambda x: (x.cumsum(0), (x @ x.t() @ x).tanh()),
    ]
    run = [recorded(function) for function in functions]
    inputs = [torch.randn(n, 256, device=CUDA) for n in (64, 256)]
    choose, held = random.Random(0), list[tuple[Tensor, Tensor]]()
    for _ in range(120):
        which, x = choose.randrange(3), choose.choice(inputs)
        held += zip(run[which](x), functions[which](x), strict=True)
        choose.shuffle(held)
        for found, expected in held:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        del held[choose.choice((0, 0, 2, 6)) :]


def test_training_needs_no_more_memory_with_recordings() -> None:
    widths = (64, 512, 512, 64)
    layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(widths * 3)]
    net = nn.Sequential(*layers).to(CUDA)
    x = torch.randn(16384, 64, device=CUDA)

    def reserved(mode: str) -> int:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        run = torch.compile(lambda x: net(x).square().mean(), backend="litz", mode=mode)
        for _ in range(4):
            net.zero_grad(set_to_none=True)
            run(x).backward()
        torch.cuda.synchronize()
        net.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    torch.cuda.reset_peak_memory_stats()
    reserved("default")
    plain = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()
    assert 0 < reserved("reduce-overhead") < 1.25 * plain


def test_sizes_of_zero_and_constants() -> None:
    weight = torch.arange(4.0, device=CUDA)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x[:0] * 2, weight, x.expand(3, *x.shape), x.t(), x * weight.sum()

    run = recorded(function)
    held = []
    for x in rows(6):
        held += list(zip(run(x), function(x), strict=True))
    for found, expected in held:
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_a_stream_that_is_behind_reads_what_was_lent() -> None:
    """It waits for an output once. Later calls neither move the output nor write there while somebody holds it."""
    run, other = recorded(lambda x: x.sin() * 2), torch.cuda.Stream()
    inputs = rows(8)
    for x in inputs[:3]:
        run(x)
    for x, following in itertools.pairwise(inputs[3:]):
        lent = run(x)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(20_000_000)
            before = lent * 1
        run(following)
        with torch.cuda.stream(other):
            after = lent * 1
        torch.cuda.synchronize()
        for found in (before, after, lent):
            torch.testing.assert_close(found, x.sin() * 2)


def test_a_thread_that_reads_what_was_lent_while_others_replay() -> None:
    """Eager code of a second thread, on the same stream, reads an output while the first thread calls again."""
    run, inputs, wrong = recorded(lambda x: (x.sin() * 2, x.sum(1))), rows(50), list[int]()
    expected = [x.sin() * 2 for x in inputs]
    handed: queue.SimpleQueue[tuple[int, Tensor] | None] = queue.SimpleQueue()

    def consume() -> None:
        while (item := handed.get()) is not None:
            number, lent = item
            copies = [lent * 1 for _ in range(8)]
            wrong.extend(number for found in copies if not torch.allclose(found, expected[number]))

    thread = threading.Thread(target=consume)
    thread.start()
    for round_ in range(20):
        if round_ % 4 == 0:
            recordings.release()  # recordings lend anew
        for number, x in enumerate(inputs):
            handed.put((number, run(x)[0]))
    handed.put(None)
    thread.join()
    assert not wrong
