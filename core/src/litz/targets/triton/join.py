"""Several kernels in one launch. In: their sources. Out: one source, in which each has programs of its own: a source
becomes a function that is told its program's number. Equal functions are called once, with the buffers of the source
that the program belongs to: a launch of a hundred tensors takes no longer to compile than one of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
    groups: dict[Any, list[tuple[int, str]]] = {}
    calls, first, counted = list[str](), 0, 0
    for source, own in zip(sources, settings, strict=True):
        for module, used in imported_helpers(source.text).items():
            helpers.setdefault(module, set()).update(used)
        given = [argument for argument in source.arguments if argument != COUNTERS]
        passed = [f"p{number}, " for number in range(len(arguments), len(arguments) + len(given))]
        passed += [f"counters + {counted}, "] * (own["counters"] > 0)
        alike = _add(source, functions), tuple(own["pointers"]), tuple(own["unaligned"])
        groups.setdefault(alike, []).append((own["grid"], "".join(passed)))
        arguments += given
        counted += own["counters"]
    for group, ((function, pointers, _), members) in enumerate(groups.items()):
        # Triton takes a name that two branches give for one value: names of a group are its own.
        taken = ", ".join([*(f"own{group}_{n}" for n in range(len(pointers))), f"own{group}"])
        calls.append(f"    {'el' if calls else ''}if number < {first + sum(grid for grid, _ in members)}:")
        calls += [*_choose(members, taken, first, " " * 8), f"        {function}({taken})"]
        first += sum(grid for grid, _ in members)
    symbol = f"{sources[0].symbol}_of_{len(sources)}"
    names = [f"p{number}" for number in range(len(arguments))] + (["counters"] if counted else [])
    lines = list(dict.fromkeys(source.text[: source.text.index("import triton")].rstrip() for source in sources))
    lines += lines_for({module: sorted(used) for module, used in helpers.items()})
    lines += [f"\n\n@triton.jit\ndef {function}{text}" for text, function in functions.items()]
    lines += ["\n", "@triton.jit", f"def {symbol}({', '.join(names)}):", f"    number = {_NUMBER}", *calls, ""]
    return replace(
        sources[0],
        name=name,
        text="\n".join(lines),
        symbol=symbol,
        arguments=(*arguments, *([COUNTERS] if counted else [])),
        settings={**settings[0], **_joined(settings), "grid": first, "counters": counted},
    )


def _choose(members: Sequence[tuple[int, str]], taken: str, first: int, indent: str) -> Iterator[str]:
    """Yields lines that name the arguments of the source that a program belongs to, found by halving. members: how many
    programs each has, and its arguments. first: the number of the first program."""
    if half := len(members) // 2:
        middle = first + sum(grid for grid, _ in members[:half])
        yield f"{indent}if number < {middle}:"
        yield from _choose(members[:half], taken, first, indent + "    ")
        yield f"{indent}else:"
        yield from _choose(members[half:], taken, middle, indent + "    ")
    else:
        yield f"{indent}{taken} = {members[0][1]}number - {first}"


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


def _joined(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings of all: a tile's text is right for any number of warps, so the largest will do; others go by the
    positions of buffers."""
    found: dict[str, Any] = {"asserts": any(own["asserts"] for own in settings), "pointers": [], "unaligned": []}
    for own in settings:
        found["unaligned"] += [len(found["pointers"]) + position for position in own["unaligned"]]
        found["pointers"] += own["pointers"][: -1 if own["counters"] else None]
    for key in ("num_warps", "num_stages", "contracts"):
        if values := [own[key] for own in settings if key in own]:
            found[key] = max(values)
    found["pointers"] += ["*i32"] * any(own["counters"] for own in settings)
    return found


__all__ = ["join_sources"]
