"""The lines of a text, and a place in a line: what `litz_testing.parse.programs` reads the IR's texts with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import NoReturn, TypeVar

Part = TypeVar("Part")

_NOTE = re.compile(r'"(?:\\.|[^"\\])*"|\s+#')
NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
WORD = re.compile(r"[^\W\d]\w*")
INTEGER = re.compile(r"-?\d+")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')


class ParseError(ValueError):
    """A text that is not as the IR prints: says the line, the column (both from 1) and what was expected there."""

    def __init__(self, expected: str, line: int, column: int, text: str) -> None:
        self.expected, self.line, self.column = expected, line, column
        found = text[column - 1 :].strip() or "the end of the line"
        super().__init__(
            f"line {line}, column {column}: expected {expected}, not {found[:40]!r}\n  {text}\n  {' ' * (column - 1)}^"
        )


class Cursor:
    """A place in one line. number: of the line, from 1. indent: of its first word. notes: what follows each `#`."""

    def __init__(self, text: str, number: int) -> None:
        self.whole, self.number = text, number
        self.indent = self.at = len(text) - len(text.lstrip())
        ends = [found.start() for found in _NOTE.finditer(text) if not found[0].startswith('"')]
        self.end = ends[0] if ends else len(text.rstrip())
        self.notes = [Note(text, number, start, end) for start, end in pairwise([*ends, len(text)])]

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        """Raises the ParseError of a place in the line, of this one by default."""
        self.at = self.at if at is None else at
        self.skip()
        raise ParseError(expected, self.number, self.at + 1, self.whole)

    def skip(self) -> None:
        """Goes to the next character that is no space."""
        while self.at < self.end and self.whole[self.at] == " ":
            self.at += 1

    def find(self, pattern: re.Pattern[str]) -> str | None:
        """Returns what a pattern finds here, and goes behind it; None, and stays, where it finds nothing."""
        self.skip()
        found = pattern.match(self.whole, self.at, self.end)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def sees(self, mark: str) -> bool:
        """Returns whether a mark comes next. A word has to be a whole one."""
        self.skip()
        if not self.whole.startswith(mark, self.at, self.end):
            return False
        after = self.whole[self.at + len(mark) : self.at + len(mark) + 1]
        return not (mark[-1].isidentifier() and (after.isalnum() or after == "_"))

    def takes(self, mark: str) -> bool:
        """Goes behind a mark if it comes next; returns whether it did."""
        found = self.sees(mark)
        if found:
            self.at += len(mark)
        return found

    def take(self, mark: str, what: str = "") -> None:
        """Goes behind a mark that has to be here."""
        if not self.takes(mark):
            self.fail(what or repr(mark))

    def name(self, what: str) -> str:
        """Returns the name here, quoted or not."""
        found = self.find(NAME) or self.find(STRING)
        if found is None:
            self.fail(what)
        return self._unquoted(found) if found.startswith('"') else found

    def string(self, what: str = "a string") -> str:
        """Returns the quoted string here."""
        found = self.find(STRING)
        return self.fail(what) if found is None else self._unquoted(found)

    def _unquoted(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError:
            self.fail("a string as JSON has them", self.at - len(text))

    def integer(self, what: str = "an integer") -> int:
        """Returns the integer here."""
        found = self.find(INTEGER)
        return self.fail(what) if found is None else int(found)

    def listed(self, part: Callable[[], Part]) -> list[Part]:
        """Returns the parts here, one or more, that commas divide."""
        found = [part()]
        while self.takes(","):
            found.append(part())
        return found

    def inside(self, close: str, part: Callable[[], Part]) -> list[Part]:
        """Returns the parts, that commas divide, up to a closing mark, and goes behind the mark."""
        if self.takes(close):
            return []
        found = self.listed(part)
        self.take(close, f"',' or {close!r}")
        return found

    @property
    def is_done(self) -> bool:
        """Returns whether this is the end of the line, its notes aside."""
        self.skip()
        return self.at >= self.end

    def finish(self) -> None:
        """Fails unless this is the end of the line."""
        if not self.is_done:
            self.fail("the end of the line")


class Note(Cursor):
    """The text after a `#` in a line, up to the next one."""

    def __init__(self, text: str, number: int, start: int, end: int) -> None:
        self.whole, self.number, self.indent, self.notes = text, number, 0, []
        self.at, self.end = text.index("#", start) + 1, len(text[:end].rstrip())


class Lines:
    """Lines of a text, read one after the other. last: the number of the line behind them."""

    def __init__(self, lines: list[Cursor], last: int) -> None:
        self._lines, self._at, self.last = lines, 0, last

    @staticmethod
    def of(text: str) -> Lines:
        """Returns the lines of a text that say something: without empty ones, and those that are a comment as a
        whole."""
        numbered = list(enumerate(text.splitlines(), 1))
        said = [Cursor(line, n) for n, line in numbered if line.strip() and not line.lstrip().startswith("#")]
        return Lines(said, len(numbered) + 1)

    @property
    def next(self) -> Cursor | None:
        """Returns the line that comes next; None at the end."""
        return self._lines[self._at] if self._at < len(self._lines) else None

    def take(self, what: str) -> Cursor:
        """Returns the next line and goes on. what: what is expected of it. Errors: ParseError at the end."""
        line = self.next
        if line is None:
            raise ParseError(what, self.last, 1, "")
        self._at += 1
        return line

    def block(self, head: Cursor) -> Lines:
        """Returns the lines that follow one and are further in, and goes behind them."""
        found = []
        while (line := self.next) is not None and line.indent > head.indent:
            found.append(self.take(""))
        return Lines(found, found[-1].number + 1 if found else head.number + 1)

    def finish(self) -> None:
        """Fails unless this is the end."""
        if self.next is not None:
            self.next.fail("the end of the text, or a line that is as far in as those before")
