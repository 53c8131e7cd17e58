"""A Schedule from its text: `parse_schedule(str(schedule), schedule.program) == schedule`. See docs/ir.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from litz.ir import Loop, Program
from litz.ir.printer import OVER, objects_in, sizes_of
from litz.schedule.schedule import BESIDE, FINISH, Kernel, Schedule, Step
from litz_testing.parse.cursor import NAME, STRING, Lines
from litz_testing.parse.programs import Parser

_MEMORY = re.compile(r"(?:address of|align|allocate|free|look at) ")
"""What the lines begin with that an ExecutionPlan has and a Schedule has not."""
_WORD = rf"(?:{NAME.pattern}|{STRING.pattern})"
_KERNEL = re.compile(rf"kernel {_WORD}(?: = {_WORD}(?: \+ {_WORD})*)?\s*(?:,|$)")
"""The line of a generated kernel; that of a call which is a kernel has arguments."""


def parse_schedule(text: str, program: Program | None = None, objects: Mapping[str, Any] | None = None) -> Schedule:
    """Returns the schedule that a text is of. program: what is scheduled; None where the text has it in front of the
    schedule. Buffers that only the steps declare are added to the program's. objects: as of
    `parse_program`, beside those of the program. Lines about memory, which the text of an ExecutionPlan has, are passed
    over. Errors: ParseError."""
    lines = Lines.of(text)
    parser = _Parser({**({} if program is None else objects_in(program)), **(objects or {})})
    if program is None:
        program = parser.program(lines)
    else:
        parser.knows(program)
    schedule = parser.schedule(lines, program)
    lines.finish()
    return schedule


class _Parser(Parser):
    def knows(self, program: Program) -> None:
        """Takes the names of a program."""
        self.buffers = dict(program.buffers)
        self.symbols = {str(symbol.name): symbol for symbol in sizes_of(program)}

    def schedule(self, lines: Lines, program: Program) -> Schedule:
        """Reads the schedule of a program."""
        head = lines.take("schedule NAME")
        head.take("schedule")
        head.name("the name of the program")
        head.at = head.end if head.takes(":") else head.at
        head.finish()
        body, steps, regions = lines.block(head), list[Step](), dict[str, Schedule]()
        main = self.own_device()
        while (line := body.next) is not None:
            if line.find(_MEMORY):
                body.take("")
            elif line.sees("region"):
                name, inner = self.region(body)
                if name not in program.regions:
                    line.fail("the name of a region of the program before this")
                parser = _Parser(self.inside(name))
                parser.knows(program.regions[name])
                regions[name] = parser.schedule(inner, program.regions[name])
                inner.finish()
            elif _KERNEL.match(line.whole, line.at, line.end):
                steps.append(self._kernel(body))
            else:
                steps.append(self.call(body, main))
        if self.buffers != program.buffers:
            program = replace(program, buffers=self.buffers)
        return Schedule(program, tuple(steps), regions=regions)

    def _kernel(self, lines: Lines) -> Kernel:
        line = lines.take("a kernel")
        line.take("kernel")
        name = line.name("the name of the kernel")
        fused, inplace, settings = list[str](), dict[str, str](), dict[str, int]()
        if line.takes("="):
            fused.append(line.name("the name of an operation"))
            while line.takes("+"):
                fused.append(line.name("the name of an operation"))
        while line.takes(","):
            key = line.name("a buffer, or the name of a setting")
            if line.takes(OVER):
                inplace[key] = line.name("the name of a buffer")
            else:
                line.take("=", f"'=' or {OVER!r}")
                settings[key] = line.integer()
        line.finish()
        body = lines.block(line)
        loop, finish, beside = self.loop(body), list[Loop](), list[Kernel]()
        while (each := body.next) is not None:
            if each.takes(FINISH):
                body.take("")
                finish.append(self.loop(body))
            elif each.takes(BESIDE):
                inside = body.block(body.take(""))
                beside.append(self._kernel(inside))
                inside.finish()
            else:
                each.fail(f"{FINISH!r} or {BESIDE!r}")
        return Kernel(name, loop, tuple(fused), inplace, tuple(finish), tuple(beside), settings)
