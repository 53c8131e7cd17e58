"""Dialect: what a language writes for the scalar ops, types and casts of the IR, as tables.

Each target has one: `targets/cpp/dialect.py`, `targets/triton/dialect.py`, or a plugin's own. Code generators and their
tests read it; the IR knows of no language.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from litz.ir.dtypes import INTEGER, STORED
from litz.ir.reductions import REDUCTIONS

Text = str | Mapping[str, str]
Casts = tuple[tuple[frozenset[torch.dtype], frozenset[torch.dtype], str], ...]

ANY = STORED
BOOL = frozenset({torch.bool})
NARROW = frozenset(dtype for dtype in INTEGER if dtype.itemsize < 4)
"""Integers that a float out of range may not be converted to at once: through 32 bits it wraps around, as in eager."""

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARISONS: Mapping[str, str] = {name: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()}
"""The texts of comparisons in most languages."""


def calls(arity: int, *names: str, prefix: str = "") -> Mapping[str, str]:
    """Returns the templates of functions that a language has under the name of the op. arity: how many arguments each
    takes. prefix: stands before the name."""
    arguments = ", ".join(f"{{{number}}}" for number in range(arity))
    return {name: f"{prefix}{name}({arguments})" for name in names}


def combining(mode: str, dtype: torch.dtype) -> str:
    """Returns the mode of a combining store for elements of a type: a sum of bools is a maximum, and a product of bools
    a minimum."""
    return {"add": "max", "prod": "min"}.get(mode, mode) if dtype == torch.bool else mode


OF_BOOL = {"sum": "any", "max": "any", "prod": "all", "min": "all"}
"""Reductions that are another one for values of bool."""


def family(kind: str, dtype: torch.dtype) -> str:
    """Returns the name of the row of a kind of reduction, for values of a type."""
    name = REDUCTIONS[kind].name
    return OF_BOOL.get(name, name) if dtype == torch.bool else name


def category(dtype: torch.dtype) -> str:
    """Returns what the text of an op may depend on: "float", "int" or "bool"."""
    if dtype.is_floating_point:
        return "float"
    return "bool" if dtype == torch.bool else "int"


@dataclass(frozen=True)
class Dialect:
    """The texts of one target.

    name: the target's. ops: for each op of `litz.ir.ops` a template, or one for each category of its first argument;
    `{0}`, `{1}`, ... are the arguments, already parenthesised, in compute types (half types and float8 as float), and
    `{T}` is the result's compute type. elements: the type of an element in memory. values: the type that it is computed
    in.
    casts, bitcasts: rows (from, to, template), of which the first that fits counts; in the templates `{0}` is the
    value, `{S}` and `{V}` are the source's types in memory and as a value, `{M}` and `{T}` the target's.
    """

    name: str
    ops: Mapping[str, Text]
    elements: Mapping[torch.dtype, str]
    values: Mapping[torch.dtype, str]
    casts: Casts
    bitcasts: Casts

    def op(self, name: str, dtype: torch.dtype) -> str:
        """Returns the template of an op whose first argument is `dtype`. Errors: NotImplementedError if the dialect has
        none."""
        found = self.ops.get(name)
        text = found if found is None or isinstance(found, str) else found.get(category(dtype))
        if text is None:
            raise NotImplementedError(f"the dialect of {self.name} has no text for {name!r} of {category(dtype)}")
        return text

    def cast(self, value: str, source: torch.dtype, target: torch.dtype, type: str = "") -> str:
        """Returns the text of `value` converted from `source` to `target`. type: what the result is held in, where that
        is not the usual type of `target`. Errors: NotImplementedError if the dialect has no text for it."""
        return self._convert("cast", self.casts, value, source, target, type)

    def bitcast(self, value: str, source: torch.dtype, target: torch.dtype) -> str:
        """Returns the text of the bits of `value`, as memory would hold it, taken for `target`. Errors:
        NotImplementedError if the dialect has no text for it."""
        return self._convert("bitcast", self.bitcasts, value, source, target)

    def _convert(
        self, what: str, rows: Casts, value: str, source: torch.dtype, target: torch.dtype, type: str = ""
    ) -> str:
        for origins, results, template in rows:
            if source in origins and target in results:
                names = {"S": self.elements[source], "V": self.values[source]}
                return template.format(value, **names, M=self.elements[target], T=type or self.values[target])
        raise NotImplementedError(f"the dialect of {self.name} has no text for a {what} from {source} to {target}")
