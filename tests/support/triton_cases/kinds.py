"""Which cases have each kind of kernel, and each type in each family of kinds: a name is a kind with types in it, and
its first word is the family ("scatter-add-int8")."""

from __future__ import annotations

import re
from collections.abc import Iterable

from support.each_value import cover

_TYPE = re.compile(r"-(b?float\d+(?:_\w+)?|u?int\d+|bool|bf16|f16|f32|f64)(?=-|$)")


def each_kind_and_type(names: Iterable[str]) -> set[str]:
    """Returns cases in which each kind is, and each type of each family, and as few others as that takes."""
    listed = list(names)
    return {listed[number] for number in cover([_parts(name) for name in listed])}


def _parts(name: str) -> dict[str, str]:
    family, types = name.partition("-")[0], _TYPE.findall(name)
    return {"kind": _TYPE.sub("", name), **{f"{family} {number}": each for number, each in enumerate(types)}}
