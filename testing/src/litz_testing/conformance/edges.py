"""Calls with numbers at and beyond the edges of a type, and with numbers in place of tensors. In: a Job whose op is the
name of an ATen op ("aten::add.Scalar"). Out: its Calls: those that eager refuses one by one, all others in one.

All is derived from the op's schema: each op that takes a Python number is here, and for integers each elementwise op
and reduction, with tensors of the type's edges. Sizes, and which tensors are masks or indices, are found by trying
until eager takes the call in an integer type, or in float32.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .call import Call
from .cases import Job

NUMBERS = ("number", "Optional[number]")
_TENSORS = ("Tensor", "Optional[Tensor]")
_SHAPES = ((2, 2), (2,), (), (1, 2, 2))
_PLAIN: dict[str, tuple[Any, ...]] = {
    "int": (1, 0),
    "bool": (False,),
    "str": ("floor", "sum", "add", "constant"),
    "List[int]": ([2, 2], [1, 1], [0]),
    "float": (0.5,),
    "Optional[int]": (1,),
    "Optional[str]": ("floor",),
    "Optional[List[int]]": ([0],),
}
_MOST_TRIES = 2000
_OF_TENSORS = {torch.Tag.pointwise, torch.Tag.reduction}
_UNTAGGED = ("aten::cumsum", "aten::cumprod", "aten::floor_divide")
"""Scans and an elementwise op without one of these tags."""
_LENGTHS = ("aten::arange", "aten::range")
"""Ops that make a tensor as long as a number says: with the edges of int32 of 8 GB."""


def edge_numbers(dtype: torch.dtype) -> list[Any]:
    """Returns the numbers at the edges of `dtype`, just beyond them, far beyond them, those that no type has, and small
    ones."""
    found: list[Any] = [True, 3, 2.5, math.inf, -math.inf, math.nan]
    if dtype.is_floating_point or dtype.is_complex:
        most, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny / 16  # the reciprocal of least is beyond the type
        return [*found, most, -most, *(n for n in (most * 1.01, most * 10) if n < math.inf), 2**63, 0, least, -least]
    if dtype == torch.bool:
        return [*found, -1, 300]
    limits = torch.iinfo(dtype)
    found += [limits.min, limits.min - 1, limits.max, limits.max + 1, -limits.max, float(limits.max + 1), 300]
    return [*found, -1, 0, limits.bits - 1, limits.bits, -limits.bits]  # divisors and powers; widths of shifts


def edge_values(dtype: torch.dtype) -> list[int]:
    """Returns the elements of tensors at the edges of an integer type; neighbours in a tensor differ."""
    limits = torch.iinfo(dtype)
    return [limits.min, limits.max, -1, 2] if limits.min < 0 else [limits.max, 0, limits.max - 1, 2]


@functools.cache
def edge_ops(integers: bool = False) -> tuple[str, ...]:
    """Returns the names of ATen's ops that take a Python number and give tensors, without those for `out=`. integers:
    elementwise ops and reductions of tensors alone too."""
    names = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return tuple(name for name in names if _is_tried(name, integers))


def edge_jobs(dtypes: Sequence[torch.dtype], only: str | None = None, device: str = "cpu") -> list[Job]:
    """Returns a job for each of `edge_ops` and each dtype. only: a regular expression for names."""
    wanted = re.compile(only or "")
    return [
        Job(name, dtype, device) for dtype in dtypes for name in edge_ops(_is_integer(dtype)) if wanted.search(name)
    ]


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def op_of(name: str) -> Any:
    """Returns the OpOverload that is called `name`."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_tried(name: str, integers: bool) -> bool:
    try:
        op = op_of(name)
    except AttributeError:  # TorchScript's own
        return False
    schema, of_tensors = op._schema, name in _UNTAGGED or not _OF_TENSORS.isdisjoint(op.tags)
    return (
        (any(str(argument.type) in NUMBERS for argument in schema.arguments) or (integers and of_tensors))
        and not any(argument.is_out for argument in schema.arguments)
        and not any("[]" in str(one.type) or "List" in str(one.type) for one in schema.returns)
        and bool(schema.returns)
    )


def edge_calls(name: str, dtype: torch.dtype) -> tuple[Call | None, list[Call]]:
    """Returns one Call for all that eager takes (None if there is nothing), and a Call for each that it refuses."""
    op, taken, refused, tensors = op_of(name), list[str](), list[str](), tuple[torch.Tensor, ...]()
    plan = (_plan(name, dtype=dtype) if _is_integer(dtype) else None) or _plan(name)
    if plan is None:
        return None, []
    for values in _variants(op, plan, dtype):
        text, tensors = _text(op, values, tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (taken if _takes(text, tensors) else refused).append(text)
    names = ", ".join(f"t{n}" for n in range(len(tensors)))

    def call(body: str) -> Call:
        source = f"def call({names}):\n    return {body}\n"
        return Call(_compiled(source), source, tensors)

    return (call(f"[{', '.join(taken)}]") if taken else None), [call(text) for text in refused]


def _compiled(source: str) -> Any:
    scope: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}
    exec(compile(source, "<edges>", "exec"), scope)
    return scope["call"]


def _takes(text: str, tensors: tuple[torch.Tensor, ...]) -> bool:
    names = ", ".join(f"t{n}" for n in range(len(tensors)))
    try:
        _compiled(f"def call({names}):\n    return {text}\n")(*tensors)
    except Exception:
        return False
    return True


@functools.cache
def _plan(name: str, given: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Any] | None:
    """Returns what eager takes in `dtype`, by the arguments' names: tensors as (shape, dtype), None for the job's; None
    where nothing was found. given: numbers that may be left out are there, without which clamp is refused."""
    op = op_of(name)
    kinds = tuple(itertools.product(_SHAPES, (None, torch.int64, torch.bool)))
    choices: dict[str, tuple[Any, ...]] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value() and not (given and kind == NUMBERS[1]):
            continue
        if kind in _TENSORS:
            choices[argument.name] = kinds
        elif kind in NUMBERS:
            choices[argument.name] = (1,)
        elif kind in _PLAIN:
            choices[argument.name] = _PLAIN[kind]
        else:
            return None
    if any(argument.name == "dtype" for argument in op._schema.arguments) and not any(
        str(argument.type) in _TENSORS for argument in op._schema.arguments
    ):
        choices["dtype"] = (dtype,)
    for values in itertools.islice(itertools.product(*choices.values()), _MOST_TRIES):
        plan = dict(zip(choices, values, strict=True))
        text, tensors = _text(op, {key: _filled(value, dtype) for key, value in plan.items()}, ())
        if _takes(text, tensors):
            return plan
    if not given and any(str(argument.type) == NUMBERS[1] for argument in op._schema.arguments):
        return _plan(name, given=True, dtype=dtype)
    return None


def _filled(value: Any, dtype: torch.dtype) -> Any:
    """A tensor where the plan has one, with ones in it: masks that take all, indices that are in range."""
    if not isinstance(value, tuple):
        return value
    shape, other = value
    found = torch.ones(shape, dtype=other or dtype)
    if other is None and not dtype.is_complex and dtype != torch.bool:
        found.view(-1)[0] = 2
    return found


def _variants(op: Any, plan: dict[str, Any], dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """The arguments of each call, by name."""
    base = {key: _filled(value, dtype) for key, value in plan.items()}
    if "dtype" in plan:
        base["dtype"] = dtype
    numbers = [argument.name for argument in op._schema.arguments if str(argument.type) in NUMBERS]
    own = [key for key, value in plan.items() if isinstance(value, tuple) and value[1] is None]
    turns = range(min(len(own), 1) + 3 * (len(own) > 1)) if _is_integer(dtype) else ()
    at_edges = [{**base, **_at_edges(base, own, dtype, turn)} for turn in turns]
    for values, name, number in itertools.product((base, *at_edges[:1]), numbers, edge_numbers(dtype)):
        yield {**values, name: number}
    yield from at_edges
    tensors = [key for key, value in base.items() if isinstance(value, torch.Tensor)]
    written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    if not written:
        for chosen in [[one] for one in tensors] + ([tensors] if len(tensors) > 1 else []):
            for number in (4, 3.3, True):
                yield {**base, **dict.fromkeys(chosen, number)}


def _at_edges(base: dict[str, Any], own: list[str], dtype: torch.dtype, turn: int) -> dict[str, torch.Tensor]:
    """Tensors of `edge_values`, where each but the first begins at another of these."""
    values, found = edge_values(dtype), dict[str, torch.Tensor]()
    for key in own:
        begin = turn if found else 0
        elements = [values[(begin + n) % len(values)] for n in range(base[key].numel())]
        found[key] = torch.tensor(elements, dtype=dtype).reshape(base[key].shape)
    return found


def _text(op: Any, values: dict[str, Any], known: tuple[torch.Tensor, ...]) -> tuple[str, tuple[torch.Tensor, ...]]:
    """The call as text, and the tensors that it and the calls before it name."""
    tensors = list(known)
    parts = []
    for argument in op._schema.arguments:
        if argument.name not in values:
            continue
        value = values[argument.name]
        if isinstance(value, torch.Tensor):
            at = next((n for n, one in enumerate(tensors) if one is value), len(tensors))
            if at == len(tensors):
                tensors.append(value)
            written = argument.alias_info is not None and argument.alias_info.is_write
            text = f"t{at}.clone()" if written else f"t{at}"
        else:
            text = repr(value)
        by_name = argument.kwarg_only or any(
            before.name not in values for before in op._schema.arguments if before.name != argument.name
        )
        parts.append(f"{argument.name}={text}" if by_name else text)
    return f"torch.ops.{op!s}({', '.join(parts)})", tuple(tensors)
