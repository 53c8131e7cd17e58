"""Several products in one launch. In: the replacements of products that do not need each other, a kernel call each.
Out: one replacement, whose programs do the first product's tiles, then the second's, and so on.

A launch that is over in a few microseconds spends half of them on getting started and on its last tiles; together the
products of one activation (queries, keys and values; gate and up) keep the device busy from one to the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from litz.ir import KernelCall
from litz.schedule.choices import Replacement
from litz_plugins import COUNTERS, KernelSource

PLACE = "    number = tl.program_id(0)\n"
"""The line of `write_gemm`'s kernels that says which tile a program does."""

_DEFINITION = re.compile(r"@triton\.jit\ndef (\w+)\(([^)]*)\):\n", re.S)
_HELPERS = re.compile(r"from litz\.runtime\.triton_helpers import ([^\n]*)\n")


def together(replacements: Sequence[Replacement], names: Sequence[str]) -> Replacement | None:
    """One replacement for all; names: of the products, in the same order. None where kernels differ in what a launch
    sets, or sizes are symbols."""
    calls = [replacement.operations[0] for replacement in replacements]
    if any(len(each.operations) != 1 for each in replacements):
        return None
    kernels = [call for call in calls if isinstance(call, KernelCall)]
    source = join_sources([call.source for call in kernels], calls[0].name) if len(kernels) == len(calls) else None
    if source is None:
        return None
    meanings = tuple((call.target, len(call.args), len(call.outputs)) for call in kernels)
    call = replace(
        kernels[0],
        target=Meanings(meanings),
        args=tuple(arg for each in kernels for arg in each.args),
        outputs=tuple(name for each in kernels for name in each.outputs),
        origins=tuple(dict.fromkeys(origin for each in kernels for origin in each.origins)),
        source=source,
    )
    absorbs = (*names[1:], *(name for each in replacements for name in each.absorbs))
    buffers = tuple(buffer for each in replacements for buffer in each.buffers)
    return Replacement((call,), buffers, tuple(dict.fromkeys(absorbs)))


def join_sources(sources: Sequence[KernelSource], name: str) -> KernelSource | None:
    """One kernel whose first programs run the first source, the next the second, and so on."""
    settings = [source.settings for source in sources]
    alike = all(len({each[key] for each in settings}) == 1 for key in ("num_warps", "num_stages", "limit"))
    plain = all(not each["sizes"] and not each["limits"] and isinstance(each["grid"], int) for each in settings)
    if not alike or not plain or any(source.text.count(PLACE) != 1 for source in sources):
        return None
    functions: dict[str, str] = {}
    helpers: set[str] = set()
    arguments: list[Any] = []
    calls: list[str] = []
    first = counted = 0
    for source, own in zip(sources, settings, strict=True):
        found = _DEFINITION.search(source.text)
        imported = _HELPERS.search(source.text)
        if found is None:
            return None
        helpers |= set(imported[1].split(", ")) if imported else set()
        parameters, body = found[2], source.text[found.end() :].replace(PLACE, "")
        function = functions.setdefault(f"({parameters}, number):\n{body}", f"part{len(functions)}")
        passed = []
        for argument in source.arguments:
            if argument == COUNTERS:
                passed.append(f"counters + {counted}")
            else:
                passed.append(f"p{len(arguments)}")
                arguments.append(argument)
        calls.append(f"    {'el' if calls else ''}if number < {first + own['grid']}:")
        calls.append(f"        {function}({', '.join(passed)}, number - {first})")
        first, counted = first + own["grid"], counted + own["counters"]
    symbol = f"{_symbol(sources[0].text)}_of_{len(sources)}"
    names = [f"p{number}" for number in range(len(arguments))] + (["counters"] if counted else [])
    lines = [source.text[: source.text.index("import triton")].rstrip() for source in sources]
    lines += ["import triton", "import triton.language as tl"]
    lines += [f"from litz.runtime.triton_helpers import {', '.join(sorted(helpers))}"] if helpers else []
    lines += [f"\n\n@triton.jit\ndef {function}{text.rstrip()}" for text, function in functions.items()]
    lines += ["\n", "@triton.jit", f"def {symbol}({', '.join(names)}):", PLACE.rstrip(), *calls, ""]
    return replace(
        sources[0],
        name=name,
        text="\n".join(lines),
        symbol=symbol,
        arguments=(*arguments, *([COUNTERS] if counted else [])),
        settings={**settings[0], **_joined(sources), "grid": first, "counters": counted},
    )


def _symbol(text: str) -> str:
    found = _DEFINITION.search(text)
    assert found is not None
    return found[1]


def _joined(sources: Sequence[KernelSource]) -> dict[str, Any]:
    """Settings that go by the positions of buffers."""
    pointers: list[str] = []
    found: dict[str, Any] = {"unaligned": [], "host_scalars": [], "asserts": False}
    for source in sources:
        own = source.settings
        for key in ("unaligned", "host_scalars"):
            found[key] += [len(pointers) + position for position in own[key]]
        found["asserts"] = found["asserts"] or own["asserts"]
        pointers += own["pointers"][: -1 if own["counters"] else None]
    counted = any(source.settings["counters"] for source in sources)
    return {**found, "pointers": [*pointers, *(["*i32"] if counted else [])]}


@dataclass(frozen=True)
class Meanings:
    """What several kernels compute, one after the other. parts: (meaning, how many arguments it takes, how many results
    it has)."""

    parts: tuple[tuple[Any, int, int], ...]

    @property
    def __name__(self) -> str:
        return " and ".join(meaning.__name__ for meaning, _, _ in self.parts)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        at = 0
        for meaning, taken, _ in self.parts:
            results += meaning(*args[at : at + taken])
            at += taken
        return tuple(results)


__all__ = ["join_sources", "together"]
