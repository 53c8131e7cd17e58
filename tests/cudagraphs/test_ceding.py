"""Backwards that are ceded the memory of what their forwards saved: what that saves, and what nobody may notice."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from litz_cudagraphs import recordings, shared_memory
from litz_cudagraphs.ceding import to_cede
from litz_cudagraphs.lent import Outputs
from litz_cudagraphs.recordings import replayed
from support.fake_recordings import Graph, Machine, machine
from support.recorded_layers import FACTS, SIZE, Layers, ceded, eagerly, kernel, pools, step, trained, weight


@pytest.fixture(scope="module", autouse=True)
def nothing_older() -> None:
    """What moves looks for its tensors among all objects that the collector of garbage knows: of a run of many tests a
    million older ones, unless they are frozen."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    recordings.release()
    yield machine(monkeypatch)
    recordings.release()


def test_a_step_needs_less_memory(made: Machine) -> None:
    peaks = []
    for cedes in (False, True):
        made.arenas.clear()
        layers, w, x = Layers(made, depth=6, cedes=cedes), weight(), torch.rand(SIZE)
        for _ in range(4):
            found = step(layers, x, w)
            torch.testing.assert_close(found, step(lambda x, w: eagerly(6, x, w), x, w))
            del found
        assert layers.ran == 2, "a call, and a recording"
        peaks.append(made.peak // (4 * SIZE))
        del layers
        gc.collect()
    before, now = peaks
    assert now == 13 + 3 < before, "what is saved, and the backward's temporaries before one of them is free"


@pytest.mark.parametrize(("unused", "taken"), [(0, [1000, 300]), (200, [800, 100]), (5000, [0, 0])])
def test_a_recording_takes_what_the_pool_lacks_in_one_piece(
    made: Machine, monkeypatch: pytest.MonkeyPatch, unused: int, taken: list[int]
) -> None:
    """A backward that is ceded memory needs what it takes at a time beside that."""
    found: list[int] = []
    monkeypatch.setattr(shared_memory, "unused_bytes", lambda pool: unused)
    monkeypatch.setattr(recordings, "take_segment", found.append)
    w, x = weight(), torch.rand(SIZE)
    layers = Layers(made, depth=2)
    layers.forward.peak, layers.backward.peak, layers.backward.growth = 1000, 5000, 300
    for _ in range(3):
        step(layers, x, w)
    assert ceded(layers) == [True] and found == taken


def wide_step(run: Any, inputs: list[Tensor], w: Tensor, order: str) -> list[Tensor]:
    """The gradients of w after steps in some order of forwards and backwards."""
    found: list[Tensor] = []
    for number in range(0, len(inputs), 2):
        pair = [x.detach().requires_grad_() for x in inputs[number : number + 2]]
        if number % 4 == 0:
            w.grad = None
        elif w.grad is not None:
            w.grad.zero_()
        if order == "one by one":
            for x in pair:
                run(x, w).sum().backward()
        elif order == "both forwards first":
            for loss in reversed([run(x, w).sum() for x in pair]):
                loss.backward()
        elif order == "backward twice":
            loss = run(pair[0], w).sum()
            loss.backward(retain_graph=True)
            other = run(pair[1], w).sum()
            loss.backward()
            other.backward()
        elif order == "without a backward":
            held = run(pair[0], w)
            run(pair[1], w).sum().backward()
            found.append(held.detach().clone())
        elif order == "no gradient held":
            for x in pair:
                found += torch.autograd.grad(run(x, w).sum(), [x, w])
        else:
            with torch.autograd.graph.save_on_cpu():
                run(pair[0], w).sum().backward()
            run(pair[1], w).sum().backward()
        found += [tensor.grad for tensor in (w, *pair) if tensor.grad is not None and tensor is not w]
        found += [] if w.grad is None else [w.grad.clone()]
    return found


ORDERS = (
    "one by one",
    "both forwards first",
    "backward twice",
    "without a backward",
    "no gradient held",
    "hooks",
)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_forwards_and_backwards(made: Machine, order: str) -> None:
    inputs, w = [torch.rand(SIZE) for _ in range(16)], weight()
    expected = wide_step(lambda x, w: eagerly(3, x, w), inputs, w, order)
    w.grad = None
    found = wide_step(Layers(made), inputs, w, order)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("seed", range(12))
def test_any_order(made: Machine, seed: int) -> None:
    """Two functions, whose recordings share memory: results and gradients that are held keep their values."""
    choose = random.Random(seed)
    functions = [Layers(made, depth) for depth in (2, 3)]
    weights = [weight() for _ in functions]
    held: list[tuple[Tensor, Tensor]] = []
    open_losses: list[tuple[Tensor, Tensor, list[Tensor], list[Tensor]]] = []
    for number in range(150):
        match choose.choice(("chain", "one", "back", "back", "back", "keep", "drop", "drop all", "again")):
            case "chain" | "one" as what:
                x = torch.rand(SIZE).requires_grad_()
                which = [0, 1] if what == "chain" else [choose.randrange(2)]
                ours = exact = x
                for n in which:
                    ours, exact = functions[n](ours, weights[n]), eagerly(functions[n].depth, exact, weights[n])
                held.append((ours, exact))
                of = [x, *(weights[n] for n in which)]
                open_losses.append((ours.sum(), exact.sum(), of, of))
            case ("back" | "keep") as what if open_losses:
                at = choose.randrange(len(open_losses))
                ours, exact, of, _ = open_losses[at]
                kept = what == "keep"
                found = torch.autograd.grad(ours, of, retain_graph=kept)
                held += zip(found, torch.autograd.grad(exact, of, retain_graph=kept), strict=True)
                del found
                if not kept:
                    del open_losses[at]
            case "drop":
                choose.shuffle(held)
                del held[choose.choice((0, 2, 4)) :]
            case "drop all":
                held.clear()
                open_losses.clear()
            case "again" if choose.random() < 0.1:
                recordings.release()
        for mine, theirs in held:
            torch.testing.assert_close(mine.detach(), theirs.detach(), msg=lambda text, n=number: f"step {n}: {text}")


@pytest.mark.parametrize("end", ["release", "garbage"])
def test_what_is_saved_outlives_the_recordings(made: Machine, end: str) -> None:
    """Nobody owns ceded memory once the recordings are gone."""
    layers, w, x = Layers(made), weight(), torch.rand(SIZE)
    trained(layers, w)
    out = layers(x, w)
    if end == "release":
        recordings.release()
    else:
        layers.forward = lambda args: ()
        layers.backward.recordings.clear()
        gc.collect()
    (found,) = torch.autograd.grad(out.sum(), [w])
    torch.testing.assert_close(found, torch.autograd.grad(eagerly(3, x, w).sum(), [w])[0])
    recordings.release()
    assert not recordings._needed


def test_an_input_that_moves_starts_over_and_cedes_again(made: Machine) -> None:
    layers, w, x = Layers(made), weight(), torch.rand(SIZE).requires_grad_()
    gradients = [torch.rand(SIZE) for _ in range(2)]
    for number in range(8):
        gradient = gradients[number // 4]
        (found,) = torch.autograd.grad(layers(x, w), [w], gradient)
        torch.testing.assert_close(found, torch.autograd.grad(eagerly(3, x, w), [w], gradient)[0])
        del found
        if number in (3, 5):
            assert ceded(layers) == [True]
    assert layers.ran == 4, "a call, a recording, a call when an input moved, a recording"
    assert ceded(layers) == [True] and len(pools(made)) == 1, "no recording moved out"


def test_functions_one_after_the_other_start_over_together(made: Machine) -> None:
    """When an input of the first backward moves, what the other forward has saved is held, too."""
    functions, weights, x = [Layers(made, 2), Layers(made, 3)], [weight(), weight()], torch.rand(SIZE)
    gradients, peak = [torch.rand(SIZE) for _ in range(2)], 0
    for number in range(9):
        gradient, found = gradients[number > 4], []
        for run in (lambda n, x: functions[n](x, weights[n]), lambda n, x: eagerly(n + 2, x, weights[n])):
            found.append(torch.autograd.grad(run(1, run(0, x)), weights, gradient))
        torch.testing.assert_close(*found)
        del found
        peak = made.peak if number == 4 else peak
    assert ceded(functions[0]) == ceded(functions[1]) == [True] and len(pools(made)) == 1 and made.peak == peak
    assert [function.ran for function in functions] == [4, 4], "a call, a recording, a call, a recording"
    assert len(made.arenas) == 2, "one before and one after, and none for a recording that is alone"


@pytest.mark.parametrize("cedes", [False, True])
def test_a_forward_that_is_recorded_again_needs_no_pool_of_its_own(made: Machine, cedes: bool) -> None:
    layers, w = Layers(made, cedes=cedes), weight()
    inputs = [torch.rand(SIZE).requires_grad_() for _ in range(2)]
    gradient, peak = torch.rand(SIZE), 0
    for number in range(8):
        x = inputs[number // 4]
        found = torch.autograd.grad(layers(x, w), [x, w], gradient)
        torch.testing.assert_close(found, torch.autograd.grad(eagerly(3, x, w), [x, w], gradient))
        del found
        peak = made.peak if number == 3 else peak
    assert ceded(layers) == [cedes] and len(pools(made)) == 1 and made.peak == peak


@pytest.mark.parametrize("from_step", [1, 3])
def test_what_somebody_else_holds_of_the_memory_keeps_its_values(made: Machine, from_step: int) -> None:
    """Besides autograd and the call, which the recording knows nothing of."""
    layers, w, x = Layers(made), weight(), torch.rand(SIZE)
    held: list[tuple[Tensor, Tensor]] = []
    for number in range(6):
        out = layers(x, w)
        if number >= from_step:
            saved = [tensor.detach() for tensor in out.grad_fn.saved_tensors[1:]]
            held += [(tensor, tensor.clone()) for tensor in saved]
            del saved
        (found,) = torch.autograd.grad(out.sum(), [w])
        torch.testing.assert_close(found, torch.autograd.grad(eagerly(3, x, w).sum(), [w])[0])
        del out, found
        for mine, before in held:
            torch.testing.assert_close(mine, before)


def test_a_result_in_the_memory_of_a_saved_tensor(made: Machine) -> None:
    """It is the caller's, and the memory stays the forward's."""
    forward = replayed(lambda args: (kernel(made, torch.sin, args.pop()),), replace(FACTS, returned_inputs=(None,)))

    def backward(args: list[Any]) -> tuple[Any, ...]:
        saved = args.pop()
        made.launch(lambda to: to.mul_(2), saved)
        return (saved.view(2, -1),)

    back = replayed(backward, replace(FACTS, made=frozenset({0}), returned_inputs=(None,)))
    held: list[tuple[Tensor, Tensor]] = []
    leaf = torch.zeros(1, requires_grad=True)
    for number in range(6):
        x = torch.rand(SIZE)
        saved = forward([x])

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, leaf: Tensor) -> Tensor:
                return leaf.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                held.append((back(list(saved_of.pop()))[0], x.sin().mul(2).view(2, -1)))  # noqa: B023
                return grad

        saved_of = [saved]
        del saved
        Function.apply(leaf).sum().backward()
        for found, expected in held:
            torch.testing.assert_close(found, expected, msg=lambda text, n=number: f"step {n}: {text}")


def test_what_may_be_ceded(made: Machine) -> None:
    """Two saved tensors of one memory, one that is saved alone, an input of the forward, one that somebody holds as
    well, a result that somebody holds, and one that nobody holds."""
    with made.record(Graph(), "pool"):
        both, alone, given, shared, held, dropped = (made.empty(SIZE) for _ in range(6))
        outputs = Outputs([both[:4], both[4:], alone, given, shared, held, dropped])
        del both, alone, given, shared, held, dropped
    outputs.settle()
    *args, result, nobodys = outputs.given()
    user = args[4].detach()
    del nobodys
    found = to_cede(args, frozenset({0, 1, 2, 4}), [outputs])
    assert [(loan.outputs, positions) for loan, positions in found.items()] == [([0, 1], [0, 1]), ([2], [2]), ([6], [])]
    del user
    assert [4] in to_cede(args, frozenset({4}), [outputs]).values() and result is not None
    assert not to_cede(args, frozenset(), [outputs]), "no forward of this backward"


def test_a_recording_that_fails_leaves_what_was_saved(made: Machine) -> None:
    layers, w, x = Layers(made), weight(), torch.rand(SIZE)
    caught: list[Any] = []

    def failing(args: list[Any]) -> tuple[Any, ...]:
        caught.extend(args[:2] if made.recording else ())
        found = layers._backward(args)
        if made.recording is not None:
            raise RuntimeError("no recording of this")
        return found

    layers.backward.entry = failing
    step(layers, x, w)
    with pytest.warns(UserWarning, match="no recording of this"):
        found = step(layers, x, w)
    torch.testing.assert_close(found, step(lambda x, w: eagerly(3, x, w), x, w))
    used = len(pools(made)[0].used)
    caught.clear()
    assert len(pools(made)[0].used) == used, "the time to free is over"
    other, y = Layers(made), torch.rand(SIZE)
    for _ in range(4):
        out = layers(x, w)
        step(other, y, w)
        (found,) = torch.autograd.grad(out.sum(), [w])
        torch.testing.assert_close(found, torch.autograd.grad(eagerly(3, x, w).sum(), [w])[0])


def test_functions_that_take_each_others_results(made: Machine) -> None:
    """Whichever was recorded first writes over what the other makes: one of them moves out."""
    ran = [0, 0]

    def counting(which: int, function: Any) -> Any:
        def entry(args: list[Any]) -> tuple[Any, ...]:
            ran[which] += 1
            x = args.pop()
            for _ in range(3):
                x = kernel(made, function, x)
            return (x,)

        return replayed(entry, replace(FACTS, returned_inputs=(None,)))

    functions = (torch.sin, torch.cos)
    first, second = (counting(n, function) for n, function in enumerate(functions))
    found = expected = torch.rand(SIZE)
    held: list[tuple[Tensor, Tensor]] = []
    for number in range(24):
        for run, function in zip((first, second), functions, strict=True):
            (found,) = run([found])
            for _ in range(3):
                expected = function(expected)
            torch.testing.assert_close(found, expected)
            if number > 16:
                held.append((found, expected))
        for mine, theirs in held:
            torch.testing.assert_close(mine, theirs)
    assert max(ran) <= 4 + recordings.MOST_ATTEMPTS, "a call, and recordings, one of them once results are held"
