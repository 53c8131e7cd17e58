"""Inputs that share memory when a graph is called, and did not when it was traced, or did in another way."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.testing

from litz.capture.aliasing import meet, respecting
from litz_contractions.traced.fused_attention import fuse_attention
from support.compare import litz

Make = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20].clone(), x[20:40].clone()


def overlap(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[5:25]


def elsewhere(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[7:27], x[9:29]


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[:20]


def one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x[:20],) * 2


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:20], x[20:40]


def interleaved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:40:2], x[1:41:2]


ORDERS: Sequence[Sequence[Make]] = [
    (apart, overlap, elsewhere, one, twice, halves, interleaved, apart),
    (overlap, apart, elsewhere, overlap, twice, halves),
    (twice, apart, elsewhere, overlap, halves),
    (interleaved, apart, elsewhere),
]


def write_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a + b


def write_both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(b + 1)
    b.copy_(a * 2)
    return a - b


def as_eager(f: Callable[..., torch.Tensor], order: Sequence[Make], dynamic: bool | None = None) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="litz", dynamic=dynamic)
    for make in order:
        ours, theirs = (torch.arange(100.0) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compiled(*make(ours))
        torch.testing.assert_close(found, f(*make(theirs)), msg=lambda text, make=make: f"{make.__name__}: {text}")
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order[0].__name__)
def test_whatever_was_traced_first(order: Sequence[Make]) -> None:
    as_eager(write_one, order)


def test_with_sizes_that_vary_and_both_written() -> None:
    as_eager(write_both, ORDERS[0], dynamic=True)


def pair(of: torch.Tensor, at: int = 0, step: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return of.as_strided((4,), (1,), at), of.as_strided((4,), (1,), at + step)


def baseless(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair of which autograd knows no base, as an extension makes it: AOTAutograd takes the whole storage."""
    memory = torch.arange(float(elements)).untyped_storage()
    first, second = (torch.empty(0).set_(memory, at, (4,), (1,)) for at in (0, 2))
    return first, second


def line(elements: int) -> torch.Tensor:
    return torch.arange(float(elements))


def test_sizes_that_vary_reach_further_than_when_traced() -> None:
    """What each input spans hangs on this call's sizes, not on the example's."""
    sizes = ((lambda x: (x[:20].clone(), x[20:40].clone())), (lambda x: (x[:40], x[30:70])))
    as_eager(write_one, sizes, dynamic=True)


def test_sizes_that_vary_stay_compiled_in_a_base_that_grows() -> None:
    compiled = torch.compile(write_one, backend="litz", dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for elements in (20, 30, 45):
            ours, theirs = line(elements), line(elements)
            torch.testing.assert_close(compiled(ours[:-5], ours[5:]), write_one(theirs[:-5], theirs[5:]))
            torch.testing.assert_close(ours, theirs)


Makes = Sequence[Callable[[], tuple[torch.Tensor, ...]]]
BASES: dict[str, Makes] = {
    "smaller": [lambda: pair(line(400)), lambda: pair(line(8)), lambda: pair(line(401))],
    "unknown and smaller": [lambda: baseless(400), lambda: baseless(8)],
    "unknown, then known": [lambda: baseless(60), lambda: pair(line(60))],
    "known, then unknown": [lambda: pair(line(60)), lambda: baseless(60)],
    "another rank": [lambda: pair(line(64)), lambda: pair(line(64).view(8, 8).clone()), lambda: baseless(64)],
    "another offset": [lambda: pair(line(64)), lambda: pair(torch.empty(0).set_(line(64).untyped_storage(), 1, (60,)))],
    "a third in it": [
        lambda: (*pair(line(20)), line(4)),
        lambda: (lambda x: (*pair(x), x[10:14]))(line(20)),
    ],
    "two, then one": [
        lambda: (*pair(line(20)), *pair(line(20), 8)),
        lambda: (lambda x: (*pair(x), *pair(x, 8)))(line(20)),
    ],
    "others together": [  # torch 2.11 passes the inputs that are not merged storage by storage
        lambda: (*pair(line(20)), line(4) + 1, line(4) + 2, line(4) + 3),
        lambda: (lambda x: (*pair(line(20)), x[:4], line(4) + 2, x[4:8]))(line(20)),
    ],
    "others overlap": [
        lambda: (*pair(line(20)), line(4) + 1, line(4) + 2),
        lambda: (*pair(line(20)), *pair(line(20))),
    ],
}  # fmt: skip


def merging(*inputs: torch.Tensor) -> torch.Tensor:
    inputs[0].mul_(2)
    inputs[1].add_(1)
    return torch.stack([value * number for number, value in enumerate(inputs, 1)])


@pytest.mark.parametrize("name", ["smaller", "unknown and smaller", "a third in it", "others together"])
def test_inputs_that_were_merged_and_lie_in_another_base(name: str) -> None:
    """The base's sizes are the compiled code's: in a smaller one it would write what is not the caller's."""
    compiled = torch.compile(merging, backend="litz", dynamic=False)
    for make in BASES[name]:
        ours, theirs = make(), make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(compiled(*ours), merging(*theirs))
        torch.testing.assert_close(ours, theirs)


def returning_views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    rows = x.unfold(0, 2, 2)
    return rows, rows.select(1, 1), x.unsqueeze(0)[:, 1:], x.expand(3, *x.shape), y[1:], y + x


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs_that_were_merged_are_returned(dynamic: bool) -> None:
    """Torch makes such an output again from the merged inputs' base by the views of one of them: an error, or values of
    another place where the sizes happen to fit."""
    compiled = torch.compile(returning_views, backend="litz", dynamic=dynamic)
    for make in (lambda: pair(line(20), 3), lambda: pair(line(20).view(4, 5).clone(), 3), lambda: (line(4), line(4))):
        ours, theirs = make(), make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected = compiled(*ours), returning_views(*theirs)
        torch.testing.assert_close(found, expected)
        assert [value.stride() for value in found[:-1]] == [value.stride() for value in expected[:-1]]
        found[0].add_(1)
        expected[0].add_(1)
        torch.testing.assert_close((found, ours), (expected, theirs))


def test_a_view_of_a_written_input_that_begins_inside_of_its_storage_is_returned() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row = x.reshape((1,))
        row.add_(row)
        return row, y.clone(), z + 1

    def inputs() -> tuple[torch.Tensor, ...]:
        base, other = torch.arange(7), torch.arange(9.0)
        return base[5], other, other[1:]

    torch._dynamo.reset()
    found = torch.compile(f, backend="litz")(*inputs())
    torch.testing.assert_close(found, f(*inputs()))
    assert found[0].storage_offset() == 5


@pytest.mark.parametrize("name", BASES)
def test_the_compiled_code_runs_with_the_base_it_was_traced_for(name: str) -> None:
    calls: list[str] = []
    first, *others = BASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = respecting(lambda *a: calls.append("compiled"), lambda *a: calls.append("eager"), first(), None, ())
        for make in (first, *others, first):
            run(*make())
    assert calls == ["compiled", *["eager"] * len(others), "compiled"]


def test_in_training() -> None:
    weight = torch.ones(20, requires_grad=True)
    as_eager(lambda a, b: write_one(a, b) * weight, ORDERS[1])


def test_parameters_that_are_tied_after_compiling() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Buffer(torch.arange(6.0)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(x)
            return self.a * self.b

    torch._dynamo.reset()
    ours, theirs = Model(), Model()
    compiled = torch.compile(ours, backend="litz")
    torch.testing.assert_close(compiled(torch.ones(6)), theirs(torch.ones(6)))
    for model in (ours, theirs):
        model.b = model.a.view(6)
    torch.testing.assert_close(compiled(torch.ones(6)), theirs(torch.ones(6)))


def test_one_warning_says_which() -> None:
    compiled = torch.compile(write_one, backend="litz")
    compiled(*apart(torch.arange(100.0)))
    with pytest.warns(UserWarning, match="l_a_ and l_b_ share memory, one of which it writes") as caught:
        for _ in range(3):
            compiled(*overlap(torch.arange(100.0)))
    assert len([w for w in caught if "share memory" in str(w.message)]) == 1


def test_only_what_can_be_wrong_is_left_to_torch() -> None:
    """Reads may overlap, and views of one memory that have no element in common are no overlap."""
    x = torch.arange(4096.0).view(64, 64)
    calls: list[str] = []
    examples = [torch.empty(64, 8), torch.empty(64, 8), torch.empty(64, 8)]
    run = respecting(
        lambda *a: calls.append("compiled"), lambda *a: calls.append("eager"), examples, frozenset({0}), ()
    )
    for args, expected in [
        ((x[:, :8], x[:, 8:16], x[:, 8:16]), "compiled"),
        ((x[:, :8], x[:, 8:16], x[:, 7:15]), "eager"),
        ((x[:, ::8], x[:, 1::8], x[:, 1::8]), "compiled"),
        ((torch.empty(64, 8), x[:, :8], x[:, 4:12]), "compiled"),
        ((torch.empty(0), torch.empty(0), torch.empty(0)), "compiled"),
    ]:
        calls.clear()
        run(*args)
        assert calls == [expected]


def test_operators_of_python_that_end_in_an_underscore_write_nothing() -> None:
    """`a | b` is operator.or_; b is a part of a."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.arange(40)
        for f in (lambda x: x | x.narrow(0, 0, 1), lambda x: x & x[1:2]):
            assert torch.equal(litz(f)(x), f(x))


def test_attention_that_is_left_to_torch_is_as_it_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the form that litz would give it: torch may pick another kernel then, which takes fewer addresses."""
    left: list[Callable[..., Any]] = []
    changes = partial(fuse_attention, unfused=lambda *args, **named: bool(named.get("enable_gqa")))
    monkeypatch.setattr("litz_contractions.traced.fused_attention.fuse_attention", changes)
    monkeypatch.setattr("litz.capture.aot.left_to_torch", lambda original, *_: left.append(original) or original)

    def function(a: torch.Tensor, b: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.add_(1)
        mask = q.new_ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        return b[2:], torch.nn.functional.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)

    torch._dynamo.reset()
    q, k = torch.randn(2, 8, 3, 16), torch.randn(2, 2, 10, 16)
    results = []
    for run in (function, torch.compile(function, backend="litz")):
        base = torch.arange(12.0)
        results.append(run(base[:8], base[4:], q, k))
    (original,) = left
    assert "repeat_interleave" not in original.code
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_graph_that_writes_nothing_has_no_check() -> None:
    examples = [torch.empty(4), torch.empty(4)]
    assert respecting(operator.add, operator.sub, examples, frozenset(), ()) is operator.add
    assert respecting(operator.add, operator.sub, examples[:1], frozenset({0}), ()) is operator.add


def test_an_input_that_overlaps_itself_is_not_compiled_for_writes() -> None:
    example = torch.empty(8).as_strided((4, 5), (1, 1))
    with pytest.warns(UserWarning, match="elements share memory"):
        assert respecting(operator.add, operator.sub, [example], frozenset({0}), ()) is operator.sub


def shifted_out(x: torch.Tensor) -> None:
    torch.add(x[1:40], 1, out=x[:39])


def shifted_item(x: torch.Tensor) -> None:
    x[1:] = x[:-1]


def shifted_sum(x: torch.Tensor) -> None:
    x[2:] += x[:-2]


def picked_item(x: torch.Tensor) -> None:
    x[torch.tensor([3, 1])] = x[:2]


def listed_item(x: torch.Tensor) -> None:
    x[[3, 1]] = x[:2]


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x[1:].add_(x[:-1]),
    "copy_": lambda x: x[:50].view(5, 10).copy_(x[7:57].view(5, 10)),
    "index_add_": lambda x: x[:40].view(4, 10).index_add_(0, torch.tensor([0, 2]), x[5:25].view(2, 10)),
    "index_add_ of itself": lambda x: x.index_add_(0, torch.arange(100), x),
    "scatter_": lambda x: x[:40].scatter_(0, torch.arange(10), x[30:50]),
    "lerp_": lambda x: x[3:].lerp_(x[:-3], 0.5),
    "_foreach_add_": lambda x: torch._foreach_add_([x[:50], x[50:99]], [x[1:51], x[51:]]),
    "out=": shifted_out,
    "setitem": shifted_item,
    "iadd": shifted_sum,
    "setitem by index": picked_item,
    "setitem by a list": listed_item,
}


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_an_op_that_reads_a_part_of_what_it_writes_is_refused_as_in_eager(name: str, dynamic: bool) -> None:
    """AOTAutograd takes such ops, as if what is read were a copy (done40g:1746)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1  # also where it is no input
        REFUSED[name](y)
        return y + 1

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        f(torch.arange(100.0))
    compiled = torch.compile(f, backend="litz", dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        with pytest.warns(UserWarning, match="reads a part of the memory that it writes") if _ == 0 else nullcontext():
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                compiled(torch.arange(100.0))


@pytest.mark.ci_cases("True")
@pytest.mark.parametrize("dynamic", [False, True])
def test_items_at_positions_of_a_list(dynamic: bool) -> None:
    """What they read is a copy, and one place may be written twice (pytorch/pytorch#174074)."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x[[0, 0]] += x[[0, 0]]
        x[[0, 1], 1] *= 2
        x[1:, [0, 0]] = x[:-1, [1, 1]]
        return x

    torch._dynamo.reset()
    x, y = torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3)
    torch.testing.assert_close(torch.compile(f, backend="litz", dynamic=dynamic, fullgraph=True)(x), f(y))
    torch.testing.assert_close(x, y)


def test_what_an_op_reads_of_what_it_writes_may_hang_on_a_size() -> None:
    """With 16 or 12 elements the two lie apart: traced again for more, and for those sizes alone."""

    def f(x: torch.Tensor) -> torch.Tensor:
        count = x.size(0) // 4
        x[:count].mul_(x[4 : 4 + count])
        return x + 1

    torch._dynamo.reset()
    calls = torch._dynamo.testing.CompileCounterWithBackend("litz")
    compiled = torch.compile(f, backend=calls, dynamic=True, fullgraph=True)
    for size in (16, 12, 15):
        torch.testing.assert_close(compiled(torch.arange(float(size))), f(torch.arange(float(size))))
    assert calls.frame_count == 1
    with pytest.warns(UserWarning, match="reads a part of the memory that it writes"):
        for size in (20, 24):
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                f(torch.arange(float(size)))
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                compiled(torch.arange(float(size)))
    assert calls.frame_count == 2


def test_inputs_that_overlap_are_refused_as_in_eager() -> None:
    """done40g:1746, of which the written tensor is the input itself by `to`."""

    def f(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        written = x.to(torch.float16)
        written.index_add_(1, index, source)
        return x.amax() + 1

    base, index = torch.arange(120.0, dtype=torch.float16), torch.tensor([0, 2, 1, 1])
    inputs = base.as_strided((4, 3, 7), (21, 7, 1), 0), index, base.as_strided((4, 4, 7), (28, 7, 1), 2)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="index_add_ reads"), pytest.raises(RuntimeError, match="single memory"):
        torch.compile(f, backend="litz")(*inputs)
    apart = [tensor.clone() for tensor in inputs]
    torch.testing.assert_close(torch.compile(f, backend="litz")(*apart), f(*[tensor.clone() for tensor in inputs]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_eager_takes_of_parts_of_one_tensor_is_compiled(dynamic: bool) -> None:
    """Parts that do not meet, a tensor and itself, and parts with gaps, of which eager does not know."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x[:20].add_(x[20:40])
        x.mul_(x).sub_(x.view(-1))
        x[40:60].index_add_(0, torch.tensor([1, 2]), x[60:62])
        x[1:5] = x[5:9]
        x[2:] += 1
        x[torch.tensor([3, 1])] += x[50:52]
        x.view(10, 10)[:, 1:].add_(x.view(10, 10)[:, :9].clone())
        return x.sin()

    torch._dynamo.reset()
    x, compiled = torch.linspace(-1, 1, 100), torch.compile(f, backend="litz", dynamic=dynamic, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x.clone()), f(x.clone()))


def test_ops_in_place_under_transforms_of_functions_are_compiled() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            c = a * 1
            c.add_(b)
            c[1:] = b[1:]
            return c.sin().sum()

        return torch.func.vmap(torch.func.grad(summed))(x, y)

    torch._dynamo.reset()
    x, y = torch.linspace(-1, 1, 12).view(3, 4), torch.ones(3, 4)
    torch.testing.assert_close(torch.compile(f, backend="litz", fullgraph=True)(x, y), f(x, y))


def test_elements_are_compared_exactly() -> None:
    x = torch.arange(64, dtype=torch.int32)
    assert meet(x[:4], x[3:8]) and not meet(x[:4], x[4:8]) and not meet(x[::3], x[1::3])
    assert meet(x[::2], x[2::4]) and meet(x[:4], x.view(torch.int8)[15:20])
    assert not meet(x.as_strided((3, 4), (10, 1)), x.as_strided((3, 4), (10, 1), 5))


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reads": lambda x: x.as_strided((2,), (1,), 0) + 1,
    "reads by a view": lambda x: x[1:].as_strided((2,), (1,), 1) + 1,
    "returns": lambda x: x.as_strided((2,), (1,), 0),
    "writes": lambda x: (x.as_strided((2,), (1,), 0).add_(1), x)[1],
    "writes and reads": lambda x: (x.mul_(2), x.as_strided((2,), (1,), 0) + 1)[1],
    "reads what it does not write": lambda x: (x.mul_(2), x.as_strided((2,), (1,), 15) + 1)[1],
    "scatters": lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (1,), 1),
    "counts from the input": lambda x: x.as_strided((2,), (1,), x.storage_offset() + 1) + 1,
}


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore:litz leaves calls")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("first", [0, 14])
@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_counts_from_the_storage(name: str, first: int, dynamic: bool) -> None:
    """No guard sees where in its storage an input begins."""
    compiled = torch.compile(STRIDED[name], backend="litz", dynamic=dynamic)
    for begin in (first, 14 - first, first):
        a, b = (torch.arange(24.0)[begin : begin + 8] for _ in range(2))
        assert torch.equal(compiled(a), STRIDED[name](b))
        assert torch.equal(a._base, b._base)  # type: ignore[arg-type]


def test_as_strided_stays_compiled_where_inputs_begin_as_traced() -> None:
    compiled = torch.compile(STRIDED["reads"], backend="litz", dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.arange(8.0)).tolist() == compiled(torch.arange(8.0)).tolist() == [1.0, 2.0]
    with pytest.warns(UserWarning, match="began elsewhere in its storage"):
        compiled(torch.arange(9.0)[1:])


def windows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.unfold(0, 1, 2).neg_()
    return b + 1


def strided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.as_strided((3,), (2,), 0).neg_()
    return b + 1


@pytest.mark.parametrize(
    "fn, parts",
    [(windows, (slice(0, 6), slice(3, 8))), (strided, (slice(0, 6), slice(3, 8))), (windows, (slice(5, 8), slice(3)))],
)
def test_parts_of_a_storage_that_are_written_through_as_strided(
    fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], parts: Sequence[slice]
) -> None:
    """AOTAutograd raises: parts that overlap are views by as_strided for it, and of a part alone it makes a whole
    storage, in which the offset is another."""
    found, expected = torch.arange(1.0, 9.0), torch.arange(1.0, 9.0)
    with pytest.warns(UserWarning, match="writes a view of what as_strided gives"):
        result = torch.compile(fn, backend="litz", dynamic=False)(*(found[part] for part in parts))
    assert torch.equal(result, fn(*(expected[part] for part in parts))) and torch.equal(found, expected)
