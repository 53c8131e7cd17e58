"""The IR from its text: `parse_program(str(program)) == program`. docs/ir.md has the grammar.

Nothing in a text is evaluated or imported: an op is one that torch has by then, and what has no text (a constant's
values, a function) is given beside the text, as `litz.ir.printer.objects_in` returns it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import sympy
import torch

from litz.ir.buffer import TensorRef
from litz.ir.index import Symbol
from litz.ir.operation import Check, Collective, Extern, KernelCall, Operation, Template, Unbacked, Wait, require
from litz.ir.printer import named_kind, own_device
from litz.ir.program import Opaque, Program, ProgramInput, ProgramOutput
from litz.regions import Region

from .cursor import NAME, WORD, Cursor, Lines, ParseError
from .loops import LoopParser, constant

_NUMBER = re.compile(r"-?(?:inf|nan|\d+\.?\d*(?:e[+-]?\d+)?j?)(?![\w.])")
_COMPLEX = re.compile(r"\([^()]*j\)")
_CALLS: Mapping[str, type[Extern]] = {
    "extern": Extern,
    "template": Template,
    "kernel": KernelCall,
    "collective": Collective,
    "wait": Wait,
    "check": Check,
}


def parse_program(text: str, objects: Mapping[str, Any] | None = None) -> Program:
    """Returns the program that a text is of. objects: what the text names but cannot spell, by the names of
    `litz.ir.printer.objects_in`. Errors: ParseError."""
    lines = Lines.of(text)
    program = Parser(objects).program(lines)
    lines.finish()
    return program


class Parser(LoopParser):
    """Reads calls and programs."""

    def argument(self, line: Cursor, call: str = "") -> Any:
        """Returns one argument of a call. call: the call's name, for what has no text."""
        if line.takes("["):
            return line.inside("]", lambda: self.argument(line, call))
        if line.takes("{"):
            return dict(line.inside("}", lambda: self._item(line, call)))
        if line.takes("tuple("):
            return tuple(line.inside(")", lambda: self.argument(line, call)))
        if line.takes("@"):
            return self.object(line, f"{call}.{line.integer()}", "an object")
        if line.sees('"'):
            text = line.string()
            return TensorRef(text, self.layout(line)) if line.whole.startswith("[", line.at) else text
        if line.takes("device"):
            return self.device(line)
        if line.takes("region"):
            return Region(line.name("the name of a region"))
        for name, value in (("None", None), ("True", True), ("False", False)):
            if line.takes(name):
                return value
        start = line.at
        number = line.find(_NUMBER) or line.find(_COMPLEX)
        if number is not None:
            if line.is_done or line.whole[line.at] in ",)]}" or line.whole[line.at - 1] in "fnj":
                return constant(number)
            line.at = start
        name = line.find(NAME) or ""
        if name and line.whole.startswith("[", line.at):
            return TensorRef(name, self.layout(line))
        if name.startswith("torch."):
            found = vars(torch).get(name.removeprefix("torch."))
            if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
                return found
        line.at = start
        return self.expressions.condition(line)

    def _item(self, line: Cursor, call: str) -> tuple[str, Any]:
        key = line.string("a key, quoted")
        line.take(":")
        return key, self.argument(line, call)

    def call(self, lines: Lines, main: torch.device | None) -> Extern:
        """Reads a call and its fields. main: the device that it is on where its line names none."""
        line = lines.take("an operation")
        start = line.at
        kind = _CALLS.get(line.find(WORD) or "")
        if kind is None:
            line.fail(f"loop, return or one of {', '.join(_CALLS)}", start)
        name = line.name("the name of the call")
        given: dict[str, Any] = {"name": name}
        given |= self._check(line) if kind is Check else self._called(line, kind, name)
        self._effects(line, given)
        if line.takes("on"):
            given["device"] = self.device(line)
        elif main is None:
            line.fail("'on' and a device, as the inputs are on several")
        else:
            given["device"] = main
        line.finish()
        self._notes(line, given)
        added = lines.block(line)
        while added.next is not None:
            kind = self._field(added, name, kind, given)
        return kind(**given)

    def _called(self, line: Cursor, kind: type[Extern], name: str) -> dict[str, Any]:
        outputs: list[str] = []
        if not line.sees("="):
            outputs = line.listed(lambda: line.name("the name of an output, or _"))
        line.take("=", "',' or '='")
        target = self._target(line, name)
        line.take("(")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}

        def argument() -> None:
            start = line.at
            key = line.find(NAME)
            if key is not None and line.takes("=") and not line.sees("="):
                kwargs[key] = self.argument(line, name)
                return
            line.at = start
            args.append(self.argument(line, name))

        line.inside(")", argument)
        given: dict[str, Any] = {"target": target, "args": tuple(args), "kwargs": kwargs}
        given["outputs"] = tuple(None if output == "_" else output for output in outputs)
        if issubclass(kind, Template):
            given["kind"] = line.name("the kind of template") if line.takes("as") else named_kind(target)
        if kind is Collective:
            line.take("group")
            given["group"] = line.string("the name of the group")
            line.take("ranks")
            line.take("[")
            given["ranks"] = tuple(line.inside("]", line.integer))
        if kind is KernelCall:
            given["source"] = self.object(line, f"{name}.source", "the source of a kernel")
        return given

    def _target(self, line: Cursor, call: str) -> Any:
        start = line.at
        if line.takes("@"):
            line.name("the name of a function")
            return self.object(line, call, "a function")
        name = line.find(NAME) or ""
        found: Any = torch.ops
        for part in name.split("."):
            found = (
                getattr(found, part, None) if isinstance(part, str) and part and not part.startswith("_" * 2) else None
            )
        if not isinstance(found, torch._ops.OpOverload):
            line.fail("an op of torch's (aten.mm.default, ...) or @name", start)
        return found

    def _check(self, line: Cursor) -> dict[str, Any]:
        given: dict[str, Any] = {"target": require, "args": (self.expressions.condition(line),)}
        if line.sees('"'):
            given["message"] = line.string()
        if line.takes("shows"):
            given["shown"] = tuple(line.listed(lambda: self._atom(line)))
        if line.takes("raises"):
            found = getattr(builtins, line.name("the name of an error"), None)
            if not (isinstance(found, type) and issubclass(found, Exception)):
                line.fail("one of Python's own errors before this")
            given["error"] = found
        return given

    def _atom(self, line: Cursor) -> Symbol:
        start = line.at
        name = line.find(WORD)
        symbol = None if name is None else self.symbol_of(name)
        if symbol is None:
            line.fail("a size that a line `size ...` declares", start)
        return symbol

    def _effects(self, line: Cursor, given: dict[str, Any]) -> None:
        if line.takes("mutates"):
            given["mutates"] = tuple(line.listed(lambda: line.name("the name of a buffer")))
        aliases: dict[str, str] = {}
        while not (line.is_done or line.sees("binds") or line.sees("effect") or line.sees("on")):
            output = line.name("mutates, an output that aliases, binds, effect, on, or the end of the line")
            line.take("aliases")
            aliases[output] = line.name("the name of a buffer")
        if aliases:
            given["aliases"] = aliases
        if line.takes("binds"):
            given["unbacked"] = tuple(line.listed(lambda: self._unbacked(line)))
        if line.takes("effect"):
            given["effect"] = True

    def _unbacked(self, line: Cursor) -> Unbacked:
        symbol = self._atom(line)
        line.take("=")
        line.take("result")
        path: list[Any] = []
        while True:
            if line.takes("["):
                path.append(line.integer())
                line.take("]")
            elif line.takes("."):
                step = line.find(WORD)
                line.take("(")
                path.append((step, *line.inside(")", line.integer)))
            else:
                return Unbacked(symbol, tuple(path))

    def _notes(self, line: Cursor, given: dict[str, Any]) -> None:
        outputs = [name for name in given.get("outputs", ()) if name is not None]
        notes = list(line.notes)
        if notes and notes[-1].takes("from"):
            last = notes.pop()
            given["origins"] = tuple(last.listed(lambda: last.name("a node's name")))
        if notes and len(notes) != len(outputs):
            notes[-1].fail(f"a type and a layout for each of {len(outputs)} outputs, not {len(notes)} of them:")
        for name, note in zip(outputs, notes, strict=False):
            self.note(name, note, given["device"])

    def _field(self, lines: Lines, name: str, kind: type[Extern], given: dict[str, Any]) -> type[Extern]:
        """Reads what a class of calls adds: a field, or which class the call is of. Returns the class."""
        line = lines.take("")
        if line.takes("is"):
            return self.object(line, f"class {line.name('the class of the call')}", "a class of calls")
        key = line.find(WORD)
        if key is None or key not in {field.name for field in fields(kind)}:
            line.fail(f"a field of {kind.__name__} before this")
        line.take("=")
        if line.is_done:
            body = lines.block(line)
            given[key] = self.loop(body)
            body.finish()
            return kind
        start = line.at
        made = self.objects.get(f"class {line.find(WORD)}")
        if made is not None and line.takes("("):
            parts = line.inside(")", lambda: self._part(line, name))
            given[key] = made(**dict(parts))
        else:
            line.at = start
            given[key] = self.argument(line, name)
        line.finish()
        return kind

    def _part(self, line: Cursor, name: str) -> tuple[str, Any]:
        key = line.name("the name of a field")
        line.take("=")
        value = self.argument(line, name)
        return key, sympy.Integer(value) if isinstance(value, int) and not isinstance(value, bool) else value

    # ------------------------------------------------------------------------------------------------------- programs

    def program(self, lines: Lines) -> Program:
        """Reads a program."""
        head = lines.take("program NAME")
        head.take("program")
        name = head.name("the name of the program")
        head.finish()
        body = lines.block(head)
        inputs: list[ProgramInput] = []
        flags: dict[str, set[str]] = {flag: set() for flag in ("static", "dying", "owned", "made")}
        constants: dict[str, torch.Tensor] = {}
        operations: list[Operation] = []
        outputs: tuple[ProgramOutput, ...] | None = None
        while body.next is not None:
            line = body.next
            if self._declares(line, inputs, flags, constants):
                body.take("")
                line.finish()
            elif line.takes("return"):
                body.take("")
                outputs = self._outputs(line, inputs)
                line.finish()
                break
            elif line.sees("loop"):
                operations.append(self.loop(body))
            else:
                operations.append(self.call(body, self.own_device()))
        if outputs is None:
            raise ParseError("return", body.last, 1, "")
        regions = {}
        while body.next is not None:
            region, inner = self.region(body)
            regions[region] = Parser(self.inside(region)).program(inner)
            inner.finish()
        body.finish()
        return Program(
            name,
            tuple(inputs),
            self.buffers,
            tuple(operations),
            outputs,
            constants,
            self.hints,
            static_inputs=frozenset(flags["static"]),
            dying_inputs=frozenset(flags["dying"]),
            owned_inputs=frozenset(flags["owned"]),
            made_inputs=frozenset(flags["made"]),
            regions=regions,
        )

    def region(self, lines: Lines) -> tuple[str, Lines]:
        """Reads the head of a region; returns the region's name and its lines."""
        head = lines.take("a region, or the end of the text")
        if not head.takes("region"):
            head.fail("a region, or the end of the text")
        name = head.name("the name of a region")
        head.finish()
        return name, lines.block(head)

    def inside(self, region: str) -> dict[str, Any]:
        """Returns the objects that the text of a region names."""
        start = f"{region}/"
        return {name.removeprefix(start): value for name, value in self.objects.items() if name.startswith(start)}

    def own_device(self) -> torch.device | None:
        """Returns the device of a call whose line names none, as `litz.ir.printer` leaves it out."""
        return own_device(self.buffers)

    def _declares(
        self,
        line: Cursor,
        inputs: list[ProgramInput],
        flags: Mapping[str, set[str]],
        constants: dict[str, torch.Tensor],
    ) -> bool:
        """Reads a line in front of the operations; returns whether it is one."""
        if line.takes("size"):
            self.size(line)
        elif line.takes("constant"):
            name = self.buffer(line, "constant").name
            constants[name] = self.object(line, name, "the values of a constant")
        elif line.takes("unused"):
            self.buffer(line, "temporary")
        elif line.takes("unnamed input"):
            self.buffer(line, "input")
        elif line.takes("input"):
            inputs.append(self._input(line, len(inputs), flags))
        else:
            return False
        return True

    def _input(self, line: Cursor, number: int, flags: Mapping[str, set[str]]) -> ProgramInput:
        start = line.at
        if line.takes("size") and not line.sees(":"):
            return self.expressions.sum(line)
        line.at = start
        name = line.name("the name of an input, or size")
        if line.sees(":"):
            line.at = start
            self.buffer(line, "input")
            for flag, names in flags.items():
                if line.takes(flag):
                    names.add(name)
            return name
        if line.takes("@"):
            line.name(f"inputs.{number}")
            return Opaque(name, self.object(line, f"inputs.{number}", "an opaque input"))
        return Opaque(name)

    def _outputs(self, line: Cursor, inputs: list[ProgramInput]) -> tuple[ProgramOutput, ...]:
        return () if line.is_done else tuple(line.listed(lambda: self._output(line, inputs)))

    def _output(self, line: Cursor, inputs: list[ProgramInput]) -> ProgramOutput:
        if not line.takes("opaque"):
            found: ProgramOutput = self.argument(line)
            return found
        names = {item.name for item in inputs if isinstance(item, Opaque)}
        start = line.at
        name = line.find(NAME)
        if name in names:
            return Opaque(name)
        line.at = start
        if line.takes("@"):
            name = line.name("outputs.0")
            return Opaque(value=self.object(line, name, "an opaque output"))
        return Opaque(value=self.argument(line))
