"""A KernelPlan from its text: `parse_kernel_plan(str(plan)) == plan`. docs/ir.md has the grammar."""

from __future__ import annotations

import re

from litz.codegen.kernel_plan import KernelPlan
from litz.ir import Loop, Range
from litz.ir.index import Expr, Symbol
from litz.ir.printer import OVER
from litz_testing.parse.cursor import Cursor, Lines
from litz_testing.parse.loops import LoopParser

_STAGES = re.compile(r"\s*(?:walk \d+|then|one walk): ")
"""Lines that follow from a loop, for readers."""


def parse_kernel_plan(text: str) -> KernelPlan:
    """Returns the plan that a text is of. Errors: ParseError."""
    said = ("" if _STAGES.match(line) else line for line in text.splitlines())
    return _Parser().plan(Lines.of("\n".join(said)))


class _Parser(LoopParser):
    def plan(self, lines: Lines) -> KernelPlan:
        """Reads a plan."""
        head = lines.take("kernel NAME on DEVICE")
        head.take("kernel")
        name = head.name("the name of the kernel")
        head.take("on")
        device, settings = self.device(head), dict[str, int]()
        while head.takes(","):
            setting = head.name("the name of a setting")
            head.take("=")
            settings[setting] = head.integer()
        head.finish()
        self._sizes, self._computed = list[Symbol](), list[tuple[Symbol, Cursor]]()
        self._starts, self._inplace, self._unaligned = dict[str, int](), dict[str, str](), set[str]()
        pieces, loops = tuple[Range, ...](), list[Loop]()
        body = lines.block(head)
        lines.finish()
        while (line := body.next) is not None:
            if line.sees("loop"):
                loops.append(self.loop(body))
                continue
            body.take("")
            if line.takes("pieces"):
                pieces = self._pieces(line)
                line.finish()
            else:
                self._declared(line)
        return KernelPlan(
            name,
            device,
            tuple(loops),
            self.buffers,
            pieces,
            tuple(self._sizes),
            dict(map(self._host, self._computed)),
            self._starts,
            self._inplace,
            frozenset(self._unaligned),
            self.hints,
            settings,
        )

    def _host(self, computed: tuple[Symbol, Cursor]) -> tuple[Symbol, Expr]:
        """Returns a size and the expression by which the host computes it, which later lines' sizes may be in."""
        size, line = computed
        found = self.expressions.sum(line)
        line.finish()
        return size, found

    def _pieces(self, line: Cursor) -> tuple[Range, ...]:
        return tuple(line.listed(lambda: self.range(line)))

    def _declared(self, line: Cursor) -> None:
        """A symbol, a size or a buffer."""
        if (kind := next((each for each in ("symbol", "size") if line.takes(each)), None)) is not None:
            size = self.size(line)
            self._sizes += [size] if kind == "size" else []
            if line.takes("="):
                self._computed.append((size, line))
                return
        elif line.takes("buffer"):
            self._noted(line, self.buffer(line, "temporary").name)
        elif line.takes("input"):
            self._noted(line, self.buffer(line, "input").name)
        elif line.takes("constant"):
            self._noted(line, self.buffer(line, "constant").name)
        else:
            line.fail("symbol, size, buffer, input, constant, pieces or loop")
        line.finish()

    def _noted(self, line: Cursor, name: str) -> None:
        while line.takes(","):
            if line.takes(OVER):
                self._inplace[name] = line.name("the name of a buffer")
            elif line.takes("from element"):
                self._starts[name] = line.integer()
            else:
                line.take("unaligned", f"{OVER!r}, 'from element' or 'unaligned'")
                self._unaligned.add(name)
