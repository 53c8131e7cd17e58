"""The table of exact ops (`exact.toml`): in, the file; out, rows, and why a call is not what a row is about."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch._ops import OpOverload

HALF = frozenset({torch.float16, torch.bfloat16})
FLOAT = frozenset({torch.float32, torch.float64})
_KINDS: Mapping[str, Callable[[torch.dtype], bool]] = {
    "float": FLOAT.__contains__,
    "half": HALF.__contains__,
    "integer": lambda dtype: not dtype.is_floating_point and not dtype.is_complex,
}

By = Literal["lowering", "decomposition"]


def _not_scaled(args: tuple[Any, ...], kwargs: Mapping[str, Any], dtypes: frozenset[torch.dtype]) -> str:
    """ATen's kernels multiply by alpha and add in one rounding or in two, by the vector width; integers have none."""
    alpha = args[2] if len(args) > 2 else kwargs.get("alpha", 1)
    whole = isinstance(alpha, int) and all(map(_KINDS["integer"], dtypes))
    return "" if alpha == 1 or whole else "its operand is scaled by alpha"


def _is_square(args: tuple[Any, ...], kwargs: Mapping[str, Any], dtypes: frozenset[torch.dtype]) -> str:
    return "" if args[1] == 2 else f"a power of {args[1]}"


CONDITIONS: Mapping[str, Callable[[tuple[Any, ...], Mapping[str, Any], frozenset[torch.dtype]], str]] = {
    "not scaled": _not_scaled,
    "a square": _is_square,
}
"""Conditions on the arguments of a call: each returns why a row does not hold for it, '' where it does."""


@dataclass(frozen=True)
class Row:
    """A row of the table. ops, dtypes, devices, numbers, when, by, how: as the file explains them."""

    ops: tuple[str, ...]
    by: By
    how: str
    dtypes: str | tuple[str, ...] = "any"
    devices: str = "any"
    when: str = ""
    numbers: str = ""

    @property
    def has_conditions(self) -> bool:
        """Returns whether some calls of the row's ops are not exact."""
        return bool(self.when) or self.dtypes != "any" or self.devices != "any"

    def refuses(self, nodes: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Returns why the row does not hold for a call, '' where it does. nodes: the fake values of its operands and
        results. args, kwargs: its arguments."""
        tensors = [value for value in nodes if isinstance(value, torch.Tensor)]
        dtypes = frozenset(tensor.dtype for tensor in tensors)
        if self.dtypes != "any":
            wrong = [dtype for dtype in dtypes if not any(_KINDS[kind](dtype) for kind in self.dtypes)]
            if wrong:
                return f"in {str(wrong[0]).removeprefix('torch.')}"
        others = [tensor.device.type for tensor in tensors if self.devices not in ("any", tensor.device.type)]
        if others:
            return f"on {others[0]}"
        return CONDITIONS[self.when](args, kwargs, dtypes) if self.when else ""

    def taken(self, args: tuple[Any, ...], dtype: torch.dtype | None) -> tuple[Any, ...]:
        """Returns the arguments of a call as ATen computes with them. dtype: of the result. Errors: NotImplementedError
        for a number that only a run tells."""
        if self.numbers != "rounded" or dtype not in HALF:
            return args
        return tuple(_as_rounded(arg, dtype) for arg in args)


def _as_rounded(arg: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(arg, (int, float)) and not isinstance(arg, bool):
        return torch.tensor(arg, dtype=dtype, device="cpu").item()
    of_a_type, size = getattr(arg, "dtype", None), getattr(arg, "size", None)
    if of_a_type is None or (not size and of_a_type != dtype):
        raise NotImplementedError("a number that only a run tells")
    return arg


@dataclass(frozen=True)
class Table:
    """The file's contents. rows: by (by, name of an op, with or without an overload)."""

    rows: Mapping[tuple[str, str], Row]
    passes: frozenset[str]
    library: frozenset[str]

    def row(self, by: By, op: OpOverload) -> Row | None:
        """Returns the row of an op, None where no row names it."""
        packet, _, overload = str(op).removeprefix("aten.").rpartition(".")
        return self.rows.get((by, f"{packet}.{overload}")) or self.rows.get((by, packet))


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Row]]:
    for given in content["row"]:
        dtypes = given.get("dtypes", "any")
        row = Row(**{**given, "ops": tuple(given["ops"]), "dtypes": dtypes if dtypes == "any" else tuple(dtypes)})
        yield from (((row.by, name), row) for name in row.ops)


@cache
def exact_table() -> Table:
    """Returns the table."""
    content = tomllib.loads(Path(__file__).with_name("exact.toml").read_text(encoding="utf-8"))
    return Table(dict(_rows(content)), frozenset(content["passes"]["kept"]), frozenset(content["library"]["ops"]))


def is_view(op: Any) -> bool:
    """Returns whether what an op returns is a view of an argument."""
    returned = op._schema.returns if isinstance(op, OpOverload) else ()
    return any(result.alias_info is not None and not result.alias_info.is_write for result in returned)
