"""Where inputs lie: a graph that writes inputs is right only where they share memory as when it was traced.

In: the graph as dynamo captured it, its fake inputs, which of them it writes, and what it was compiled to. Out: a
callable that looks at the inputs' addresses on each call. AOTAutograd takes inputs that do not overlap when they are
traced for separate ones, and those that do for parts of one, their base, each at its place; dynamo's guards see neither
another overlap nor another place nor another base. A call that differs in that runs the graph as dynamo captured it, by
torch's own operations, and warns once. A graph that writes nothing has no check.

The addresses that were found right are kept, as most programs call with few different ones. What a call costs then, on
one core of an Intel Xeon with AVX-512, 2026-11-22: 0.4 us for 2 inputs, 46 us for the 750 of an Adam step that takes
6 ms; 2 us and 200 us where the addresses are new.

A graph that names an offset for `as_strided` looks into the storages of its inputs: each input has to begin in its
storage where it began.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product, zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.capture import torch_api

Run = Callable[..., Any]
REMEMBERED = 4
"""Sets of addresses: for double buffers, and for programs that alternate between batches."""
LARGEST_MAP = 1 << 26
"""Bytes that two tensors with a common range may span to be compared byte by byte, once for each way that they lie."""
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def respecting(
    compiled: Run,
    original: Run,
    examples: Sequence[Any],
    written: frozenset[int] | None,
    names: Sequence[str],
    fakes: Sequence[Any] | None = None,
) -> Run:
    """`compiled`, where inputs lie as they did when it was traced, else `original`.

    examples: the inputs that it was traced with. written: positions of inputs that it writes; None where AOTAutograd
    has put inputs together, so that any may be. names: of the inputs, for the warning; may be fewer. fakes: the
    examples with symbols for sizes that may vary; the examples themselves if None.
    """
    fakes = examples if fakes is None else fakes
    tensors = _plain(examples)
    traced = _Traced(
        tensors=tuple(tensors),
        written=frozenset(tensors) if written is None else written & set(tensors),
        numbers=tuple(at for at, value in enumerate(examples) if isinstance(value, _NUMBERS)),
        spans=tuple(_known_span(fakes[at]) for at in tensors),
        storages=tuple(_varying(storage, fakes) for storage in _storages(examples, tensors)) if written is None else (),
        names=tuple(names),
    )
    if written is not None and any(_meets_itself(values[at]) for values in (examples, fakes) for at in traced.written):
        _warn("it writes an input whose elements share memory with each other")
        return original
    return _checked(compiled, original, traced) if traced.written and len(tensors) > 1 else compiled


def beginning_as_traced(
    compiled: Run,
    original: Run,
    examples: Sequence[Any],
    written: frozenset[int],
    names: Sequence[str],
    fakes: Sequence[Any],
) -> Run:
    """`compiled`, where inputs begin in their storage where they began when it was traced, else `original`.

    For graphs that call `as_strided` with an offset, which counts from the storage's begin: no guard sees where an
    input begins. Always `original` where the graph writes a part of a storage, as AOTAutograd traces what becomes of
    the input as a whole one (torch 2.11 to 2.13). The arguments are those of `respecting`.
    """
    tensors = _plain(examples)
    if any(_is_part(examples[at]) for at in tensors if at in written):
        _warn("it writes a part of a storage, and looks into the storage with as_strided")
        return original
    begins = {at: fakes[at].storage_offset() for at in tensors}
    begins = {at: begin for at, begin in begins.items() if isinstance(begin, int)}  # symbols are read on each call
    leave = _leaving(original)

    def call(*args: Any) -> Any:
        for at, begin in begins.items():
            if args[at].storage_offset() != begin:
                what = "began elsewhere in its storage, where as_strided counts from, when it was compiled"
                return leave(f"{_called(names, (at,))} {what}", args)
        return compiled(*args)

    return call if begins else compiled


def storages_shared(values: Sequence[Any], tensors: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Returns the positions of the values that lie in the same storage, a tuple for each storage with several values.
    tensors: where values with an address are, if that is known."""
    found: dict[int, list[int]] = {}
    for at in _plain(values) if tensors is None else tensors:
        found.setdefault(values[at].untyped_storage()._cdata, []).append(at)
    return tuple(tuple(positions) for positions in found.values() if len(positions) > 1)


_VIEWED = "it writes an input that shares memory with another, and returns a view of an input"
_TODO = "give the graph tensors of their own, say clones"


def left_to_torch(original: Run, why: str = _VIEWED, todo: str = _TODO) -> Run:
    """`original`, with a warning: by default a graph that writes inputs that overlap and returns views of inputs.

    AOTAutograd makes such results again, either by the views of the program, on the merged inputs' base in place of the
    input, or by the sizes, strides and offset of what the graph returned, which after a write begins elsewhere: values
    of another place, or an error (torch 2.11 to 2.13).
    """
    _warn(why, todo=todo)
    return original


@torch.no_grad()  # what dynamo holds may be views that autograd lets nobody look at any more
def reads_what_it_writes(graph: torch.fx.Graph) -> str:
    """The first op of dynamo's graph that reads a part of the memory that it writes, neither with gaps; '' for none.

    Eager refuses most of these. AOTAutograd takes all, as if what is read were a copy."""
    for node in graph.nodes:
        name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
        in_place = name == "setitem" or (name[:1] == "i" and f"__{name}__" in dir(operator))
        in_place |= name.endswith("_") and name not in dir(operator)  # operator.or_ is `a | b`
        if not in_place and "out" not in node.kwargs:
            continue
        args, named = torch.fx.map_arg((node.args, node.kwargs), lambda of: of.meta.get("example_value"))
        written, read = (args[:1], (args[1:], named)) if in_place else (named["out"], (args, {**named, "out": None}))
        by_index = name.startswith(("index_", "scatter_", "put_"))
        if name == "setitem" and _tensors(args[0]):
            by_index = any(isinstance(i, list | torch.Tensor) for i in (args[1:2], args[1])[type(args[1]) is tuple])
            written, read = (args[0] if by_index else args[0][args[1]]), args[2]
        if any(_refused(a, b, by_index) for a, b in product(_tensors(written), _tensors(read))):
            return name
    return ""


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if _is_plain(value)]


def _refused(written: torch.Tensor, read: torch.Tensor, by_index: bool) -> bool:
    """As ATen's `get_overlap_status` says. Ops by index refuse the same memory, too. Of sizes that vary this makes
    guards: with others, the graph is traced again. False where only data tell a size."""
    if written.untyped_storage()._cdata != read.untyped_storage()._cdata:
        return False
    spans = []
    for tensor in (written, read):
        offset = tensor.storage_offset()
        if None in map(torch_api.hint_or_none, (*tensor.shape, *tensor.stride(), offset)) or 0 in tensor.shape:
            return False
        steps = [(step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]
        steps.sort(key=lambda pair: torch_api.hint_or_none(pair[0]))
        reach = list(accumulate((n for _, n in steps), operator.mul, initial=1))
        if [step for step, _ in steps] != reach[:-1]:
            return False
        spans.append((offset * tensor.itemsize, (offset + reach[-1]) * tensor.itemsize, steps))
    (first, end, _), (other_first, other_end, _) = spans
    return first < other_end and other_first < end and (by_index or spans[0] != spans[1])


@dataclass(frozen=True)
class _Storage:
    """Inputs of one storage: positions, where each begins, and what AOTAutograd puts in place of all; neither where no
    two overlap, as AOTAutograd leaves them alone then."""

    positions: tuple[int, ...]
    offsets: tuple[int, ...] = ()
    base: tuple[Any, ...] | None = None

    def like(self, other: _Storage) -> bool:
        """Returns whether this was traced for `other`. Sizes that may vary are None in `base`."""
        if (self.positions, self.offsets) != (other.positions, other.offsets):
            return False
        if self.base is None or other.base is None:
            return self.base is other.base
        pairs = zip_longest(self.base, other.base, fillvalue=())
        return all(traced is None or traced == now for traced, now in pairs)


@dataclass(frozen=True)
class _Traced:
    """The way that a graph's inputs lay: positions of tensors and of numbers, the bytes that each tensor spans (None:
    depends on a size), the storages of several inputs where AOTAutograd merged some."""

    tensors: tuple[int, ...]
    written: frozenset[int]
    numbers: tuple[int, ...]
    spans: tuple[int | None, ...]
    storages: tuple[_Storage, ...]
    names: tuple[str, ...]
    meetings: dict[Any, bool] = field(default_factory=dict)

    @property
    def merges(self) -> bool:
        """Returns whether AOTAutograd put inputs together."""
        return any(storage.base for storage in self.storages)

    def complaint(self, args: Sequence[Any]) -> str | None:
        """Returns what is wrong with the inputs of a call, as text; None for nothing."""
        if self.merges:
            # Torch 2.11 merges inputs of a call as that call's storages say, and passes the others in their order: a
            # tensor that shares one of them without an overlap counts as well.
            for traced, now in zip_longest(self.storages, _storages(args, self.tensors)):
                if traced is None or now is None or not traced.like(now):
                    called = _called(self.names, (traced or now).positions)
                    return f"{called} shared memory in another way when it was compiled"
        together = {at: number for number, found in enumerate(self.storages) if found.base for at in found.positions}
        for a, b in self._crossing(args):
            if a in self.written or b in self.written:
                if together.get(a, -1) != together.get(b, -2) and self._meet(args[a], args[b]):
                    return f"{_called(self.names, (a, b))} share memory, one of which it writes"
        return None

    def _crossing(self, args: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Pairs of positions of tensors whose first to last bytes have some in common."""
        places = []
        for at, known in zip(self.tensors, self.spans, strict=True):
            start = args[at].data_ptr()
            if start:
                places.append((start, start + (_span(args[at]) if known is None else known), at))
        places.sort()
        if all(before[1] <= after[0] for before, after in pairwise(places)):
            return
        open_: list[tuple[int, int, int]] = []
        for place in places:
            open_ = [earlier for earlier in open_ if earlier[1] > place[0]]
            yield from ((earlier[2], place[2]) for earlier in open_)
            open_.append(place)

    def _meet(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Returns whether two tensors share a byte. Computed once for each way that they lie to each other."""
        key = (b.data_ptr() - a.data_ptr(), a.shape, a.stride(), a.itemsize, b.shape, b.stride(), b.itemsize)
        if key not in self.meetings:
            self.meetings[key] = meet(a, b)
        return self.meetings[key]


def _checked(compiled: Run, original: Run, traced: _Traced) -> Run:
    get = operator.itemgetter(*traced.tensors, *traced.numbers)
    count, address = len(traced.tensors), torch.Tensor.data_ptr
    right: list[list[Any]] = []
    leave = _leaving(original)

    def call(*args: Any) -> Any:
        values = get(args)
        # Sizes and strides follow from the numbers, as dynamo guards them: addresses and numbers say how all lie.
        key = [*map(address, values[:count]), *values[count:]]
        if key not in right:
            complaint = traced.complaint(args)
            if complaint is not None:
                return leave(complaint, args)
            if not traced.merges:  # where those begin in their storage, the addresses do not say
                right[REMEMBERED - 1 :] = []
                right.insert(0, key)
        return compiled(*args)

    return call


def _leaving(original: Run) -> Callable[[str, Sequence[Any]], Any]:
    """`original`, for a complaint and inputs. The first complaint is a warning."""
    warned = False

    def leave(complaint: str, args: Sequence[Any]) -> Any:
        nonlocal warned
        if not warned:
            warned = True
            _warn(complaint, stacklevel=4)
        return original(*args)

    return leave


def _called(names: Sequence[str], positions: Sequence[int]) -> str:
    return " and ".join(names[at] if at < len(names) else f"input {at}" for at in positions)


def _warn(complaint: str, stacklevel: int = 3, todo: str = _TODO) -> None:
    problem = f"litz leaves calls of a graph to torch's own operations, which is slower: {complaint}"
    warnings.warn(f"{problem}. To have them compiled, {todo}", stacklevel=stacklevel)


def _is_plain(value: Any) -> bool:
    """A tensor with an address: subclasses hold several, which AOTAutograd takes out."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not torch_api.is_wrapper(value)


def _plain(values: Sequence[Any]) -> list[int]:
    return [at for at, value in enumerate(values) if _is_plain(value)]


def _storages(values: Sequence[Any], tensors: Sequence[int]) -> Iterator[_Storage]:
    """The storages that more than one tensor is in."""
    for positions in storages_shared(values, tensors):
        group = [values[at] for at in positions]
        if torch_api.overlapping(group):
            offsets = tuple(torch_api.hint_of(value.storage_offset()) for value in group)
            yield _Storage(positions, offsets, torch_api.synthetic_base(group))
        else:
            yield _Storage(positions)


def _varying(storage: _Storage, fakes: Sequence[Any]) -> _Storage:
    """Returns the storage with None for the sizes of the base that may vary, which are symbols where the base is
    traced."""
    if storage.base is None:
        return storage
    traced = torch_api.synthetic_base([fakes[at] for at in storage.positions])
    if len(traced) != len(storage.base):
        return storage
    base = tuple(None if symbolic is None else known for symbolic, known in zip(traced, storage.base, strict=True))
    return replace(storage, base=base)


def _known_span(tensor: torch.Tensor) -> int | None:
    numbers = (*tensor.shape, *tensor.stride())
    return _span(tensor) if all(isinstance(number, int) for number in numbers) else None


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element's first to the last one's last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _is_part(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor begins after its storage does, or ends before the storage ends."""
    begin, whole = torch_api.hint_of(tensor.storage_offset()), torch_api.hint_of(tensor.untyped_storage().nbytes())
    return begin != 0 or torch_api.hint_of(_span(tensor)) < whole


def _meets_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements of a tensor may be one memory; with sizes that vary, as far as strides of 0 show."""
    dims = [(step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
    if not all(isinstance(number, int) for dim in dims for number in dim):
        return any(isinstance(step, int) and step == 0 and n != 1 for step, n in dims)
    reach = 0
    for step, n in sorted(dim for dim in dims if dim[1] != 1):
        if step <= reach:
            return tensor.numel() > 0
        reach += (n - 1) * step
    return False


def meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors have a byte of memory in common; True where that takes too long to find out."""
    if a.dtype == b.dtype and not torch_api.overlapping([a, b]):  # torch counts in elements
        return False
    first = min(a.data_ptr(), b.data_ptr())
    total = max(a.data_ptr() + _span(a), b.data_ptr() + _span(b)) - first
    if total > LARGEST_MAP:
        step = math.gcd(*(stride * t.itemsize for t in (a, b) for _, stride in _dims(t)))
        apart = (b.data_ptr() - a.data_ptr()) % step
        return not a.itemsize <= apart <= step - b.itemsize
    used = torch.zeros(total, dtype=torch.bool)
    _bytes_of(a, used, first).fill_(True)
    return bool(_bytes_of(b, used, first).any())


def _dims(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """(size, stride) of the dimensions that more than one element lies along."""
    return [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1 and step > 0]


def _bytes_of(tensor: torch.Tensor, of: torch.Tensor, first: int) -> torch.Tensor:
    """The elements of `of`, one for each byte from the address `first` on, that stand for a tensor's bytes."""
    dims = _dims(tensor)
    size, stride = [n for n, _ in dims], [step * tensor.itemsize for _, step in dims]
    return of.as_strided([*size, tensor.itemsize], [*stride, 1], tensor.data_ptr() - first)
