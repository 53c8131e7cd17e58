"""What a program means: three runs of it, statement by statement, as it is written.

`eager` is torch. `exact` is torch in float64: the judge. `noisy` is float64 with a random rounding error of the real
dtype after each statement: how far it drifts says how far an honest result may drift. A statement that would make the
comparison unfair (it overflows, it compares numbers that carry rounding errors) raises `Rejected`: the generator and
the shrinker then do without it.
"""

from __future__ import annotations

import re
from types import CodeType
from typing import Any

import torch

from litz.testing.tensors import overlaps

from .inputs import InputSpec, make_inputs
from .program import FuzzProgram, Statement


class Rejected(Exception):
    """The statement has no place in a program."""


LARGEST = {torch.float16: 1e3, torch.bfloat16: 1e4, torch.float32: 1e5, torch.float64: 1e7}
"""What stays far from overflow whatever the order of a sum."""
MOST_ELEMENTS = 40_000
FLOAT_NAMES = re.compile(r"torch\.(float16|bfloat16|float32|float64)\b")


class Reference:
    """The values of a program's variables so far. Nothing here is differentiated: `grad` programs only get tainted."""

    def __init__(self, inputs: tuple[InputSpec, ...], seed: int = 0) -> None:
        self.eager: dict[str, torch.Tensor] = {}
        self.exact: dict[str, torch.Tensor] = {}
        self.noisy: dict[str, torch.Tensor] = {}
        self.tainted: set[int] = set()
        self.rng = torch.Generator().manual_seed(seed)
        for number, (a, b, c) in enumerate(
            zip(make_inputs(inputs), make_inputs(inputs, True), make_inputs(inputs, True), strict=True)
        ):
            self.eager[f"x{number}"], self.exact[f"x{number}"], self.noisy[f"x{number}"] = a, b, c

    def add_input(self, name: str, spec: InputSpec) -> None:
        """One more input, once statements have run (it aliases none of the others)."""
        self.eager[name] = make_inputs((spec,))[0]
        self.exact[name], self.noisy[name] = make_inputs((spec,), True)[0], make_inputs((spec,), True)[0]

    def is_exact(self, name: str) -> bool:
        """Whether the variable has no rounding error."""
        value = self.eager[name]
        return not value.dtype.is_floating_point or _memory(value) not in self.tainted

    def step(self, statement: Statement) -> None:
        """Run one statement. Rejected: it raises in eager, or is unfair; a variable it wrote is then in an undefined
        state, but one that it was to make does not exist."""
        operands = [name for name in statement.uses if name in self.eager]
        tainted = [name for name in operands if not self.is_exact(name)]
        if statement.exact and tainted:
            raise Rejected("operands carry rounding errors")
        if statement.writes and overlaps(self.eager[statement.writes]):
            raise Rejected("which of several writes to one place comes last is anyone's")
        known = {_memory(value) for value in self.eager.values()}
        old = self.eager[statement.writes].clone() if statement.writes else None
        try:
            value = _run(statement, self.eager, statement.text)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
            raise Rejected(str(error)) from error
        del old
        if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS:
            self._forget(statement)
            raise Rejected("no tensor, or a large one")
        doubled = FLOAT_NAMES.sub("torch.float64", statement.text)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            exact, noisy = _run(statement, self.exact, doubled), _run(statement, self.noisy, doubled)
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
            self._forget(statement)
            raise Rejected(f"only in float64: {error}") from error
        finally:
            torch.set_default_dtype(before)
        try:
            self._judge(statement, value, exact, noisy, bool(tainted), _memory(value) in known)
        except Rejected:
            self._forget(statement)
            raise

    def _judge(
        self,
        statement: Statement,
        value: torch.Tensor,
        exact: torch.Tensor,
        noisy: torch.Tensor,
        tainted: bool,
        shared: bool,
    ) -> None:
        if value.shape != exact.shape:
            raise Rejected("another shape in float64")
        if not value.dtype.is_floating_point:
            if value.dtype != exact.dtype or not torch.equal(value, exact) or not torch.equal(value, noisy):
                raise Rejected("integers that differ in float64")
            return
        wide = value.double()
        if not same_specials(wide, exact) or not same_specials(wide, noisy):
            raise Rejected("overflow")
        finite = wide[wide.isfinite()]
        if finite.numel() and float(finite.abs().max()) > LARGEST[value.dtype]:
            raise Rejected("large")
        off = bool(((wide != exact) & exact.isfinite()).any())
        if shared and not statement.writes:
            if off and _memory(value) not in self.tainted:
                self.tainted.add(_memory(value))
            return
        if not (tainted or statement.rough or off):
            return
        self.tainted.add(_memory(value))
        error = torch.rand(noisy.shape, generator=self.rng, dtype=torch.float64) * 2 - 1
        error = 1 + error * torch.finfo(value.dtype).eps
        if not statement.writes:
            self.noisy[statement.target] = noisy * error
        else:
            noisy.mul_(error)

    def _forget(self, statement: Statement) -> None:
        if not statement.writes:
            for run in (self.eager, self.exact, self.noisy):
                run.pop(statement.target, None)


def reference_of(program: FuzzProgram, inputs: tuple[InputSpec, ...] | None = None) -> Reference:
    """All statements run. Rejected if one is unfair."""
    reference = Reference(program.inputs if inputs is None else inputs)
    for statement in program.statements:
        reference.step(statement)
    return reference


def same_specials(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether infinities and NaN are in the same places."""
    if torch.equal(a.isfinite(), b.isfinite()):
        where = ~a.isfinite()
        return torch.equal(a[where].nan_to_num(7.0), b[where].nan_to_num(7.0))
    return False


def _run(statement: Statement, names: dict[str, torch.Tensor], text: str) -> Any:
    value = eval(_code(text), {"torch": torch, "nan": float("nan"), "inf": float("inf")}, names)
    if statement.writes:
        return names[statement.writes]
    names[statement.target] = value
    return value


_CODES: dict[str, CodeType] = {}


def _code(text: str) -> CodeType:
    if len(_CODES) > 5000:
        _CODES.clear()
    if text not in _CODES:
        _CODES[text] = compile(text, "<fuzz>", "eval")
    return _CODES[text]


def _memory(value: torch.Tensor) -> int:
    # An empty tensor has no address; it also has no values that could carry an error.
    return value.untyped_storage().data_ptr()
