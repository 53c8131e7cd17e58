"""Several kernels in one launch. In: their sources. Out: one source, whose first programs run the first, the next ones
the second, and so on: each becomes a function that is told its program's number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litz_plugins import COUNTERS, KernelSource

from .imports import imported_helpers, lines_for

_DEFINITION = re.compile(r"^@triton\.jit\ndef (\w+)\(([^)]*)\):\n", re.M)
_NUMBER = "tl.program_id(0)"


def join_sources(sources: Sequence[KernelSource], name: str) -> KernelSource | None:
    """Returns one kernel that runs all sources, each in programs of its own. None if a size or a grid is symbolic, or
    if the sources' `limit` settings differ."""
    settings = [source.settings for source in sources]
    static = all(not each["sizes"] and not each["limits"] and isinstance(each["grid"], int) for each in settings)
    if not static or len({each["limit"] for each in settings}) > 1:
        return None
    functions: dict[str, str] = {}
    helpers: dict[str, set[str]] = {}
    arguments: list[Any] = []
    calls: list[str] = []
    first = counted = 0
    for source, own in zip(sources, settings, strict=True):
        for module, used in imported_helpers(source.text).items():
            helpers.setdefault(module, set()).update(used)
        function = _add(source, functions)
        passed = []
        for argument in source.arguments:
            if argument == COUNTERS:
                passed.append(f"counters + {counted}")
            else:
                passed.append(f"p{len(arguments)}")
                arguments.append(argument)
        calls.append(f"    {'el' if calls else ''}if number < {first + own['grid']}:")
        calls.append(f"        {function}({', '.join([*passed, f'number - {first}'])})")
        first, counted = first + own["grid"], counted + own["counters"]
    symbol = f"{sources[0].symbol}_of_{len(sources)}"
    names = [f"p{number}" for number in range(len(arguments))] + (["counters"] if counted else [])
    lines = [source.text[: source.text.index("import triton")].rstrip() for source in sources]
    lines += lines_for({module: sorted(used) for module, used in helpers.items()})
    lines += [f"\n\n@triton.jit\ndef {function}{text}" for text, function in functions.items()]
    lines += ["\n", "@triton.jit", f"def {symbol}({', '.join(names)}):", f"    number = {_NUMBER}", *calls, ""]
    return replace(
        sources[0],
        name=name,
        text="\n".join(lines),
        symbol=symbol,
        arguments=(*arguments, *([COUNTERS] if counted else [])),
        settings={**settings[0], **_joined(sources), "grid": first, "counters": counted},
    )


def _add(source: KernelSource, functions: dict[str, str]) -> str:
    """Add a source's functions, under names of their own, to those that are there: text -> name. The name of the one
    that is the kernel, which takes its program's number as its last argument now."""
    found = list(_DEFINITION.finditer(source.text))
    ends = [match.start() for match in found[1:]] + [len(source.text)]
    named: dict[str, str] = {}
    for match, end in zip(found, ends, strict=True):
        name, parameters, body = match[1], match[2], source.text[match.end() : end].rstrip()
        for old, new in named.items():
            body = re.sub(rf"\b{old}\b", new, body)
        if name == source.symbol:
            body = body.replace(_NUMBER, "number")
            parameters = ", ".join(part for part in (parameters, "number") if part)
        named[name] = functions.setdefault(f"({parameters}):\n{body}", f"part{len(functions)}")
    return named[source.symbol]


def _joined(sources: Sequence[KernelSource]) -> dict[str, Any]:
    """Settings of all: a tile's text is right for any number of warps, so the largest will do; others go by the
    positions of buffers."""
    pointers: list[str] = []
    found: dict[str, Any] = {"unaligned": [], "asserts": False}
    for source in sources:
        own = source.settings
        found["unaligned"] += [len(pointers) + position for position in own["unaligned"]]
        found["asserts"] = found["asserts"] or own["asserts"]
        pointers += own["pointers"][: -1 if own["counters"] else None]
    for key in ("num_warps", "num_stages"):
        values = [source.settings[key] for source in sources if key in source.settings]
        found |= {key: max(values)} if values else {}
    counted = any(source.settings["counters"] for source in sources)
    return {**found, "pointers": [*pointers, *(["*i32"] if counted else [])]}


__all__ = ["join_sources"]
