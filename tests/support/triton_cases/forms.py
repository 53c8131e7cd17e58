"""Which cases together have each form of a line that kernels have, and each function beside each type.

A form is a line without the names of values, the numbers and the types: a fault in how something is written is a fault
of a form, and one of a function in a type is a fault of that pair."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VALUE = re.compile(r"(?<![.\w])[a-z]+\d+(?:_\d+)*\b(?!\()")
_NUMBER = re.compile(r"(?<![.\w])\d[\d.]*(?:e[+-]?\d+)?\b")
_TYPE = re.compile(r"\btl\.(?:b?float|u?int)\d\w*")
_CAST = re.compile(r"\bto\(tl\.\w+\)")
_FUNCTION = re.compile(r"\b([a-z_]\w*)\(")


def forms(text: str) -> set[str]:
    """Returns the forms of the lines of a kernel's functions, and "function type" for each two of one line."""
    lines = (line.partition("#")[0].strip() for line in text.partition("@triton.jit")[2].splitlines())
    found = set[str]()
    for line in lines:
        if line and not line.startswith("def "):
            found.add(_NUMBER.sub("0", _VALUE.sub("v", _TYPE.sub("tl.type", line))))
            found.update(_CAST.findall(line))
            found |= {f"{name} {kind}" for name in _FUNCTION.findall(line) for kind in _TYPE.findall(line)}
    return found


def each_form(texts: Mapping[str, str]) -> list[str]:
    """Returns names in whose texts each form is: each time the one with the most forms that are missing for its length,
    and of several the first."""
    of = {name: forms(text) for name, text in texts.items()}
    missing, found = set[str]().union(*of.values()), list[str]()
    while missing:
        best = max(of, key=lambda name: len(of[name] & missing) / len(texts[name]))
        found.append(best)
        missing -= of[best]
    return found
