"""What a program means: three runs of it, statement by statement, as it is written.

`eager` is torch. `exact` is torch in float64: the judge. `noisy` is float64 with a random rounding error of the real
dtype after each statement, and after each op of a deep one: how far it drifts says how far an honest result may drift.
A statement that would make the comparison unfair (it overflows, it compares numbers that carry rounding errors) raises
`Rejected`: the generator and the shrinker then do without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial, reduce
from types import CodeType
from typing import Any

import torch

from litz_testing.tensors import overlaps

from .defined import UndefinedError, defined
from .inputs import SCALES, InputSpec, is_inexact, make_inputs
from .program import NAMES, FuzzProgram, Statement
from .rounding import Rounding


class Rejected(Exception):
    """Raised for a statement that has no place in a program."""


class Raised(Rejected):
    """Eager refuses the statement. error: what it raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


REFUSALS = (RuntimeError, TypeError, IndexError, ValueError, ArithmeticError)
"""The errors that eager raises where it refuses a statement, those of Python's own numbers among them."""
LARGEST = {torch.float16: 1e3, torch.bfloat16: 1e4, torch.float32: 1e5, torch.float64: 1e7,
           torch.complex64: 1e5, torch.complex128: 1e7}  # fmt: skip
"""The greatest magnitude that stays far from overflow whatever the order of a sum."""
LARGEST_OF_HUGE = 3e37
"""The same where inputs are huge, of types that hold them: float64, the judge, holds what leaves float32."""
MOST_ELEMENTS = 40_000
DEEP_RUNS = 4
"""Noisy runs of a deep statement."""
_CANCELS = re.compile(r"\b(gelu|logaddexp2?)\(")
"""Ops that add numbers which may cancel: gelu adds 1 to what may be near -1, logaddexp a logarithm to a maximum."""
_INEXACT_NAMES = re.compile(r"torch\.(float16|bfloat16|float32|float64|complex64|complex128)\b")


def in_double(text: str) -> str:
    """Returns a statement's text with the types that judge it, float64 and complex128."""
    return _INEXACT_NAMES.sub(lambda name: "torch.complex128" if "complex" in name[0] else "torch.float64", text)


def parts(value: torch.Tensor) -> torch.Tensor:
    """Returns complex numbers as pairs of real ones, and other numbers as they are."""
    return torch.view_as_real(value.resolve_conj()) if value.dtype.is_complex else value


class Reference:
    """The values of a program's variables so far. Nothing here is differentiated: `grad` programs only get tainted.
    contracts: a statement may read a result twice, with another rounding each time, as where a compiler makes one
    instruction of a product and the sum that reads it."""

    def __init__(self, inputs: tuple[InputSpec, ...], seed: int = 0, contracts: bool = False) -> None:
        self.contracts = contracts
        self.eager: dict[str, torch.Tensor] = {}
        self.exact: dict[str, torch.Tensor] = {}
        self.noisy: dict[str, torch.Tensor] = {}
        self.scales = SCALES.keys() & {spec.kind for spec in inputs}
        """The kinds of inputs that are tiny or huge."""
        self.tainted: set[int] = set()
        self.raised: type[Exception] | None = None
        """What eager raised at the last statement, of a program that does not end well."""
        self.rounded_in: dict[str, frozenset[torch.dtype]] = {}
        """Of variables with rounding errors, the types with larger errors than their own that these come from."""
        self.unsized: list[str] = []
        """Variables whose sizes come from data."""
        self.rng = torch.Generator().manual_seed(seed)
        for number, (a, b, c) in enumerate(
            zip(make_inputs(inputs), make_inputs(inputs, True), make_inputs(inputs, True), strict=True)
        ):
            self.eager[f"x{number}"], self.exact[f"x{number}"], self.noisy[f"x{number}"] = a, b, c

    def add_input(self, name: str, spec: InputSpec) -> None:
        """Adds an input after statements have run. The input aliases none of the others."""
        self.eager[name] = make_inputs((spec,))[0]
        self.exact[name], self.noisy[name] = make_inputs((spec,), True)[0], make_inputs((spec,), True)[0]

    def is_exact(self, name: str) -> bool:
        """Returns whether the variable is free of rounding errors."""
        value = self.eager[name]
        return not is_inexact(value.dtype) or _memory(value) not in self.tainted

    def step(self, statement: Statement) -> None:
        """Runs one statement. Rejected: it raises in eager, or is unfair; a variable it wrote is then in an undefined
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
            with defined(statement):
                value = _run(statement, self.eager, statement.text)
        except UndefinedError as error:
            raise Rejected(str(error)) from error
        except NotImplementedError as error:
            # Eager has no kernel for the dtype. litz may have one, and then finds what is wrong with the values.
            raise Rejected(str(error)) from error
        except REFUSALS as error:
            raise Raised(error) from error
        del old
        if not statement.target and not statement.writes:
            return
        if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS:
            self._forget(statement)
            raise Rejected("no tensor, or a large one")
        doubled = in_double(statement.text)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            exact = _run(statement, self.exact, doubled)
            noisy = self._noisy(statement, doubled, value, exact, bool(tainted) and self.contracts)
        except REFUSALS as error:
            self._forget(statement)
            raise Rejected(f"only in float64: {error}") from error
        finally:
            torch.set_default_dtype(before)
        try:
            self._judge(statement, value, exact, noisy, bool(tainted), _memory(value) in known)
        except Rejected:
            self._forget(statement)
            raise
        if statement.target and (statement.unsized or statement.uses & set(self.unsized)):
            self.unsized.append(statement.target)

    def _noisy(
        self, statement: Statement, text: str, value: torch.Tensor, exact: torch.Tensor, contracts: bool
    ) -> torch.Tensor:
        """Runs a statement on noisy operands, a deep one several times, and returns what is furthest from `exact`: the
        roundings of one run may cancel. contracts: each op of the statement reads with roundings of its own."""
        if not (statement.deep or contracts):
            return _run(statement, self.noisy, text)  # type: ignore[no-any-return]
        again = exact.dtype.is_floating_point and not statement.writes
        eps = torch.finfo(value.dtype if is_inexact(value.dtype) else torch.float64).eps
        with Rounding(eps, self.rng, reads=contracts):
            runs = [_run(statement, self.noisy, text) for _ in range(DEEP_RUNS if again else 1)]
        return reduce(partial(further, exact), runs)

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
        if not is_inexact(value.dtype):
            if value.dtype != exact.dtype or not torch.equal(value, exact) or not torch.equal(value, noisy):
                raise Rejected("integers that differ in float64")
            return
        wide, judge = parts(value).double(), parts(exact)
        if not same_specials(wide, judge) or not same_specials(wide, parts(noisy)):
            raise Rejected("overflow")
        if value.dtype not in LARGEST:
            raise Rejected(f"nobody judges {value.dtype}")
        finite = wide[wide.isfinite()]
        largest = LARGEST[value.dtype]
        if "huge" in self.scales and torch.finfo(value.dtype).max > LARGEST_OF_HUGE:
            largest = LARGEST_OF_HUGE
        if finite.numel() and float(finite.abs().max()) > largest:
            raise Rejected("large")
        off = bool(((wide != judge) & judge.isfinite()).any())
        if shared and not statement.writes:
            if off and _memory(value) not in self.tainted:
                self.tainted.add(_memory(value))
            return
        if not (tainted or statement.rough or off):
            return
        self.tainted.add(_memory(value))
        self._note_types(statement, value)
        if torch._debug_has_internal_overlap(noisy) == 1:
            raise Rejected("noise for elements that share memory")
        error = torch.rand(noisy.shape, generator=self.rng, dtype=torch.float64) * 2 - 1
        error = 1 + error * torch.finfo(value.dtype).eps
        if not statement.writes:
            cancels = statement.centred or _CANCELS.search(statement.text) or self._sums_narrower(statement, value)
            off_by = self._rounding_within(statement, value) if cancels else self._roundings_read(statement, value)
            # What the op takes from what it reads may be another rounding of that.
            if tainted and (self.contracts or statement.centred):
                off_by = off_by + self._unrounded(statement, value)
            self.noisy[statement.target] = noisy * error + off_by
            if "tiny" in self.scales:
                self.noisy[statement.target] += smallest_of(value.dtype) * (exact != 0)
        else:
            noisy.mul_(error)

    def _note_types(self, statement: Statement, value: torch.Tensor) -> None:
        read = [name for name in statement.uses if name in self.eager and not self.is_exact(name)]
        types = {self.eager[name].dtype for name in read}.union(*(self.rounded_in.get(name, ()) for name in read))
        eps = torch.finfo(value.dtype).eps
        coarser = frozenset(dtype for dtype in types if is_inexact(dtype) and torch.finfo(dtype).eps > eps)
        self.rounded_in[statement.writes or statement.target] = coarser

    def _sums_narrower(self, statement: Statement, value: torch.Tensor) -> bool:
        """Returns whether a statement makes fewer numbers of a narrower type, as `mean(x, dtype=torch.float32)` does of
        float64. The op rounds the terms first; where the terms cancel, the result is as large as these roundings."""
        eps = torch.finfo(value.dtype).eps
        operands = [self.eager[name] for name in statement.uses if name in self.eager]
        return any(
            operand.numel() > value.numel() and is_inexact(operand.dtype) and torch.finfo(operand.dtype).eps < eps
            for operand in operands
        )

    def _rounding_within(self, statement: Statement, value: torch.Tensor) -> torch.Tensor:
        """Returns the error that an op whose terms cancel may have: a rounding of the terms, in the type that the op
        computes in, which grows with the root of their count."""
        operands = [self.exact[name] for name in statement.uses if name in self.exact]
        computed_in = torch.float64 if value.dtype == torch.float64 else torch.float32
        count = max(operand.numel() for operand in operands) / max(value.numel(), 1)
        return torch.finfo(computed_in).eps * max(count, 1.0) ** 0.5 * magnitude(value, operands)

    def _roundings_read(self, statement: Statement, value: torch.Tensor) -> torch.Tensor | float:
        """Returns what the roundings of a sum's terms may come to, an eighth of it, as `complaints` allows eight times
        the drift: the terms may cancel, and the noise of one run with them."""
        names = [name for name in statement.uses if name in self.eager and not self.is_exact(name)]
        operands = [self.eager[name] for name in names if self.eager[name].numel() > value.numel() > 0]
        if not operands or value.dtype.is_complex:
            return 0.0
        eps = max(torch.finfo(operand.dtype).eps for operand in operands if is_inexact(operand.dtype))
        count = max(operand.numel() for operand in operands) / value.numel()
        return eps / 16 * count**0.5 * magnitude(value, [self.exact[name] for name in names])

    def _unrounded(self, statement: Statement, value: torch.Tensor) -> torch.Tensor:
        """The roundings of products that an op reads, an eighth of them (see `_roundings_read`): of several reads in
        the op one may be of the product before it was rounded, as where a softmax subtracts a row's maximum."""
        read = [name for name in statement.uses if name in self.eager and not self.is_exact(name)]
        inexact = [self.eager[name].dtype for name in read if is_inexact(self.eager[name].dtype)]
        eps = max((torch.finfo(dtype).eps for dtype in inexact), default=0.0)
        return eps / 8 * magnitude(value, [self.exact[name] for name in read])

    def _forget(self, statement: Statement) -> None:
        if not statement.writes:
            for run in (self.eager, self.exact, self.noisy):
                run.pop(statement.target, None)


def smallest_of(dtype: torch.dtype) -> float:
    """Returns the smallest number above zero of a type: a rounding of a tiny number may be as large."""
    finfo = torch.finfo(dtype)
    return finfo.smallest_normal * finfo.eps


def magnitude(value: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the largest number that each element was computed from: a kernel may be off by a rounding of that."""
    found = torch.zeros(value.shape, dtype=torch.float64)
    for operand in operands:
        if operand.numel() and not operand.dtype.is_complex:
            sizes = operand.double().abs().nan_to_num(0.0, 0.0, 0.0)
            found = torch.maximum(found, sizes if sizes.shape == value.shape else sizes.max())
    return found


def reference_of(
    program: FuzzProgram, inputs: tuple[InputSpec, ...] | None = None, contracts: bool = False
) -> Reference:
    """Returns the reference with all statements run. Rejected if one is unfair, or if eager refuses one and dynamo does
    not capture the program: else `raised` says what it raised. contracts: see `Reference`."""
    reference = Reference(program.inputs if inputs is None else inputs, contracts=contracts)
    try:
        for statement in program.statements:
            reference.step(statement)
    except Raised as refusal:
        if not program.by_dynamo:
            raise
        reference.raised = type(refusal.error)
    if program.raises and reference.raised is None:
        raise Rejected("eager accepts what it should refuse")
    return reference


def further(exact: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns, of each element of a and b, the one that is further from exact, or NaN if one is NaN."""
    return torch.where((a - exact).abs() > (b - exact).abs(), a, b) if same_specials(a, b) else a * torch.nan


def same_specials(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether infinities and NaN are in the same places."""
    if torch.equal(a.isfinite(), b.isfinite()):
        where = ~a.isfinite()
        return torch.equal(a[where].nan_to_num(7.0), b[where].nan_to_num(7.0))
    return False


def _run(statement: Statement, names: dict[str, torch.Tensor], text: str) -> Any:
    value = eval(_code(text), dict(NAMES), names)
    if statement.writes:
        return names[statement.writes]
    if not statement.target:
        return None
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
