"""What a backward graph is called with: dynamo guards the inputs of a forward graph, and nobody those of a backward.

In: a compiled backward and the fake inputs that it was compiled for. Out: a callable that also takes gradients that are
lazily negated, as a hook may return them, or lazily conjugated where the traced one is not, or the other way round.
From the first forward under saved-tensor hooks on it takes whatever those hooks unpack: the backward gets copies with
the traced dtype, device and strides. (`torch.autograd.graph.save_on_cpu` unpacks contiguous tensors, say.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.size_text import read_size, size_text

Compiled = Callable[[list[Any]], Sequence[Any]]
Number = Any
"""A size or stride: a number, or a sympy expression in sizes that may vary; its text where it comes from a file."""


class SavedTensorHooks:
    """A note that a forward was called under saved-tensor hooks, so that its backward has to look at each tensor."""

    def __init__(self) -> None:
        self.seen = False

    def watching(self, forward: Compiled) -> Compiled:
        """Returns a function that calls `forward` and sets `seen` if saved-tensor hooks are active at the call."""

        def call(args: list[Any]) -> Sequence[Any]:
            if torch_api.saved_tensor_hooks_active():
                self.seen = True
            return forward(args)

        return call


@dataclass(frozen=True)
class TracedTensor:
    """A tensor that a backward was compiled for. at: its position among the inputs. gradient: it is handed to
    backward(). made: by the forward: the backward may write over it, which a hook's author may hold, too."""

    at: int
    name: str
    dtype: str
    device: str
    size: tuple[Number, ...]
    stride: tuple[Number, ...]
    negative: bool
    conjugated: bool
    gradient: bool
    made: bool


@dataclass(frozen=True)
class BackwardInputs:
    """The inputs that a backward was compiled for. tensors: its tensor inputs. sizes: the position of each input that
    is a number -> the text of the number's expression."""

    tensors: tuple[TracedTensor, ...]
    sizes: Mapping[int, str]

    def as_data(self) -> dict[str, Any] | None:
        """Returns the inputs as JSON has them; None if a size cannot be written as text."""
        tensors = [asdict(tensor) for tensor in self.tensors]
        for item in tensors:
            item |= {name: [_as_text(number) for number in item[name]] for name in ("size", "stride")}
            if None in (*item["size"], *item["stride"]):
                return None
        return {"tensors": tensors, "sizes": {str(at): text for at, text in self.sizes.items()}}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> BackwardInputs:
        """Returns the inputs that `as_data` wrote. Errors: KeyError and TypeError for other data."""
        tensors = [
            TracedTensor(**{**item, "size": tuple(item["size"]), "stride": tuple(item["stride"])})
            for item in data["tensors"]
        ]
        return cls(tuple(tensors), {int(at): text for at, text in data["sizes"].items()})


def traced_inputs(
    nodes: Sequence[torch.fx.Node], examples: Sequence[Any], made: frozenset[int] = frozenset()
) -> BackwardInputs:
    """Returns what a backward was compiled for. nodes, examples: its inputs, as FX nodes and as fake tensors. made:
    positions of those that the forward made."""
    tensors = tuple(
        TracedTensor(
            at=at,
            name=nodes[at].name,
            dtype=str(value.dtype).removeprefix("torch."),
            device=str(value.device),
            size=tuple(map(_expression, value.shape)),
            stride=tuple(map(_expression, value.stride())),
            negative=value.is_neg(),
            conjugated=value.is_conj(),
            gradient=torch_api.is_tangent(nodes[at]),
            made=at in made,
        )
        for at, value in enumerate(examples)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
    )
    sizes = {at: str(torch_api.sympy_of(value)) for at, value in enumerate(examples) if isinstance(value, torch.SymInt)}
    return BackwardInputs(tensors, sizes)


def as_traced(backward: Compiled, inputs: BackwardInputs, hooks: SavedTensorHooks) -> Compiled:
    """Returns `backward` as a function that first makes its inputs what it was compiled for, by copies."""
    gradients = [(tensor.at, tensor.conjugated) for tensor in inputs.tensors if tensor.gradient]

    def call(args: list[Any]) -> Sequence[Any]:
        for at, conjugated in gradients:
            given = args[at]
            if given is not None and (given.is_neg() or given.is_conj() != conjugated):  # None: nobody computed it
                args[at] = _copied(given, given.stride(), given.dtype, given.device, conjugated)
        if hooks.seen:
            sizes = {text: args[at] for at, text in inputs.sizes.items()}
            for tensor in inputs.tensors:
                unpacked = args[tensor.at]
                if unpacked is not None:
                    args[tensor.at] = _like(unpacked, tensor, sizes)
                    if tensor.made and args[tensor.at] is unpacked:
                        args[tensor.at] = _copied(
                            unpacked, unpacked.stride(), unpacked.dtype, unpacked.device, tensor.conjugated
                        )
        return backward(args)

    return call


def _like(value: torch.Tensor, traced: TracedTensor, sizes: Mapping[str, int]) -> torch.Tensor:
    size, stride = ([_number(n, sizes) for n in numbers] for numbers in (traced.size, traced.stride))
    if list(value.shape) != size:
        raise RuntimeError(
            f"a saved-tensor hook unpacked sizes {list(value.shape)} for {traced.name}, saved with {size}"
        )
    dtype, device = getattr(torch, traced.dtype), torch.device(traced.device)
    plain = value.is_neg() == traced.negative and value.is_conj() == traced.conjugated
    lies = all(n <= 1 or have == wanted for n, have, wanted in zip(size, value.stride(), stride, strict=True))
    if plain and lies and value.dtype == dtype and value.device == device:
        return value
    return _copied(value, tuple(stride), dtype, device, traced.conjugated)


def _copied(
    value: torch.Tensor, stride: Sequence[int], dtype: torch.dtype, device: torch.device, conjugated: bool
) -> torch.Tensor:
    """The elements in memory of their own, read as the conjugate of what lies there if `conjugated`: `view_as_real` of
    a tensor conjugated twice takes one that was traced so. Without the negative bit: who expects that of a tensor
    resolves it, which changes nothing then."""
    one = [1 if step == 0 and n > 1 else n for n, step in zip(value.shape, stride, strict=True)]
    fresh = torch.empty_strided(one, tuple(stride), dtype=dtype, device=device)
    fresh = fresh.conj() if conjugated else fresh
    return fresh.copy_(value[tuple(slice(n) for n in one)]).as_strided(value.shape, tuple(stride))


def _expression(number: Any) -> Number:
    return number if isinstance(number, int) else torch_api.sympy_of(number)


def _as_text(number: Number) -> int | str | None:
    if isinstance(number, int | str):
        return number
    return int(number) if number.is_Integer else size_text(number)


def _number(number: Number, sizes: Mapping[str, int]) -> int:
    if isinstance(number, int):
        return number
    if str(number) in sizes:
        return sizes[str(number)]
    if isinstance(number, str):
        return read_size(number, sizes)
    return int(number.xreplace({symbol: sizes[str(symbol)] for symbol in number.free_symbols}))
