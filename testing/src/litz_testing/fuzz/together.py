"""A compiled program called by several threads at once, with results held while later calls run.

Calls with other inputs go on beside each other, and a thread gives way between any two lines of litz's code that it
runs. Each call's results must be those of the same call alone, and must stay so until the end, whoever holds them and
however (`holders.py`). The inputs are large: litz uses large memory again, and leaves small memory to malloc.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import litz

from .defined import UndefinedError, defined
from .execute import Executable, trained
from .gradients import gradients
from .holders import CHANGES, HOLDERS, REFUSES, SENT, Keeper, Reader, bits
from .inputs import InputSpec, is_inexact, make_inputs
from .program import NAMES, FuzzProgram
from .reference import REFUSALS

THREADS, CALLS = 3, 3
"""Threads at a time, and calls of each."""
ELEMENTS, MOST_ELEMENTS = 40_000, 1_000_000
"""How large an input should be, and how large any value may be."""
MOST_SECONDS = 1.0
"""Of processors, that eager may take for such inputs: many calls follow."""
GIVES_WAY = 0.1
"""How likely a thread gives way at a line."""
SWITCHES = 1e-6
"""Seconds after which Python asks a thread to give way."""
CHANGES_STORAGE = 0.2
"""How likely a result's storage is changed instead of held."""
_Run = Callable[[tuple[InputSpec, ...]], list[torch.Tensor]]
"""Calls a program with such inputs, and returns results, gradients, and inputs afterwards."""
_LITZ = str(Path(litz.__file__).parent)


def large_inputs(program: FuzzProgram) -> tuple[InputSpec, ...] | None:
    """Returns inputs of the program with other extents, so that the largest has about `ELEMENTS` elements; None if
    eager refuses them or makes something very large of them."""
    extents = sorted({n for spec in program.inputs for n in spec.size if n > 1})
    rank = max((sum(n > 1 for n in spec.size) for spec in program.inputs), default=0)
    if not rank:
        return None
    step = max(2, round(ELEMENTS ** (1 / rank)))
    sizes = {old: step + number for number, old in enumerate(extents)}
    specs = tuple(spec.resized(sizes) for spec in program.inputs)
    return specs if _accepts(program, specs) else None


def _foreseen(text: str, values: Mapping[str, Any]) -> int:
    """Returns how many elements an expression's result has, by tensors without memory; 0 where these do not say."""
    sizes = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    try:
        result = eval(text, dict(NAMES), sizes)
    except Exception:
        return 0
    return result.numel() if isinstance(result, torch.Tensor) else 0


def _accepts(program: FuzzProgram, specs: tuple[InputSpec, ...]) -> bool:
    """Returns whether eager takes such inputs, and makes nothing very large of them."""
    values = dict(zip((f"x{n}" for n in range(len(specs))), make_inputs(specs), strict=True))
    begun = time.process_time()
    try:
        for statement in program.statements:
            if _foreseen(statement.text, values) > MOST_ELEMENTS:
                return False
            with defined(statement):
                result = eval(statement.text, dict(NAMES), values)
            if isinstance(result, torch.Tensor) and result.numel() > MOST_ELEMENTS:
                return False
            if time.process_time() - begun > MOST_SECONDS:
                return False  # positions of all rows with all columns, say, are more work than what they make says
            if statement.target:
                values[statement.target] = result
    except (*REFUSALS, UndefinedError):
        return False
    return True


@dataclass(frozen=True)
class _Call:
    """A call: its inputs, and what it gives alone: results, gradients, and inputs afterwards."""

    specs: tuple[InputSpec, ...]
    expected: list[torch.Tensor]


@dataclass(frozen=True)
class _Held:
    """A result that is held. how: in words. expected: its bytes."""

    how: str
    read: Reader
    expected: torch.Tensor


class Together:
    """Runs executables by several threads. runs: counts what was done. wrappers: the folder of litz's wrappers."""

    def __init__(self, runs: Counter[str], wrappers: str) -> None:
        self.runs, self._ours = runs, (_LITZ, wrappers)
        self._keeper: Keeper | None = None

    def complaint(self, program: FuzzProgram, executable: Executable, grads: bool) -> str:
        """Returns what is wrong, or an empty string. grads: whether eager has gradients of the program."""
        rng = random.Random(f"{program.label} together")
        large = large_inputs(program)
        if large is None or not executable.accepts(make_inputs(large)):
            return ""
        self.runs["together"] += 1
        run, calls = partial(_results, program, executable, grads), []
        for number in range(THREADS):
            specs = tuple(replace(spec, seed=spec.seed + 1000 * number) for spec in large)
            if number and not _accepts(program, specs):
                return ""  # positions of other data may lie outside
            begun = time.process_time()
            results = run(specs)
            if time.process_time() - begun > MOST_SECONDS:
                return ""  # eager adds rows of bytes ten times as fast (s81a:123), and there are 30 more calls
            if not all(isinstance(value, torch.Tensor) for value in results):
                return ""  # `complaints` has told of it, or excused torch's tracing
            calls.append(_Call(specs, [_copy(value) for value in results]))
        return self._by_threads(run, calls) or self._held(rng, run, calls, len(program.outputs))

    def _by_threads(self, run: _Run, calls: Sequence[_Call]) -> str:
        kept: list[tuple[_Call, list[torch.Tensor]]] = []
        broken: list[str] = []
        start = threading.Barrier(len(calls))

        def work(call: _Call) -> None:
            start.wait()
            try:
                for _ in range(CALLS):
                    kept.append((call, run(call.specs)))
            except Exception as error:
                broken.append(f"a call beside others raised {type(error).__name__}: {error}")

        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        with _giving_way(self._ours):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found = (_differs(run, call, values, "a call beside others") for call, values in kept)
        return next(filter(None, (*broken, *found)), "")

    def _held(self, rng: random.Random, run: _Run, calls: Sequence[_Call], outputs: int) -> str:
        """One call after another, with results that are held in some way. outputs: how many of the results are."""
        held: list[_Held] = []
        try:
            for call in [*calls, *calls]:
                values = run(call.specs)
                wrong = _differs(run, call, values, "a later call")
                if wrong:
                    return wrong
                results = [value for value in values[:outputs] if value.numel()]
                storages = Counter(value.untyped_storage().data_ptr() for value in values)
                if results and rng.random() < CHANGES_STORAGE:
                    alone = [value for value in results if storages[value.untyped_storage().data_ptr()] == 1]
                    how = rng.choice(list(CHANGES))
                    for value in alone[:1]:
                        CHANGES[how](value.untyped_storage())
                        self.runs[how] += 1
                else:
                    # A tensor that is sent takes its memory elsewhere, in eager too: an array of the old memory ends.
                    shared = Counter(value.untyped_storage().data_ptr() for value in results)
                    held += [self._hold(rng, v, shared[v.untyped_storage().data_ptr()] == 1) for v in results]
                values = results = alone = value = None  # type: ignore[assignment]
            for one in held:
                if not torch.equal(bits(one.read()), one.expected):
                    return f"what is held by {one.how} has changed"
        finally:
            held.clear()
            if self._keeper is not None:
                self._keeper.forget()
        return ""

    def _hold(self, rng: random.Random, value: torch.Tensor, alone: bool) -> _Held:
        """alone: nobody else holds the value's memory."""
        how = rng.choice([how for how in (*HOLDERS, "another process") if alone or how not in SENT])
        expected = bits(value)
        if self._keeper is None and how == "another process":
            self._keeper = Keeper()
        hold = HOLDERS.get(how) or self._keeper.hold  # type: ignore[union-attr]
        try:
            read = hold(value)
        except REFUSES:
            how, read = "tensor", HOLDERS["tensor"](value)
        self.runs[f"held by {how}"] += 1
        return _Held(how, read, expected)


def _differs(run: _Run, call: _Call, values: Sequence[torch.Tensor], when: str) -> str:
    """Returns what is wrong with the values of a call. A sum of several threads has an order of its own each time:
    where the numbers differ, and the call alone gives others each time, nothing is said."""
    for place, (value, expected) in enumerate(zip(values, call.expected, strict=True)):
        if not _close(value, expected):
            alone = [run(call.specs)[place] for _ in range(3)]
            if all(_close(other, expected) for other in alone):
                return f"value {place} of {when} is another than that of the call alone"
    return ""


def _results(
    program: FuzzProgram, executable: Executable, grads: bool, specs: tuple[InputSpec, ...]
) -> list[torch.Tensor]:
    inputs = trained(program, make_inputs(specs))
    with torch.set_grad_enabled(program.grad):
        outputs = executable.run(inputs, "compiled")
        return [*outputs, *(gradients(outputs, inputs) if grads else []), *inputs]


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().resolve_conj().resolve_neg().clone()


def _close(value: torch.Tensor, expected: torch.Tensor) -> bool:
    value = value.detach().resolve_conj().resolve_neg()
    if value.shape != expected.shape or value.dtype != expected.dtype:
        return False
    if torch.equal(bits(value), bits(expected)):
        return True
    return is_inexact(value.dtype) and value.dtype.itemsize > 1 and torch.allclose(value, expected, 1e-2, 1e-3, True)


@contextmanager
def _giving_way(folders: tuple[str, ...]) -> Iterator[None]:
    """Threads that are started meanwhile give way at any line of code in these folders."""

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        # Between a function's end and its caller's next step is where what was checked no longer holds.
        if event == "return" or random.random() < GIVES_WAY:
            time.sleep(0)
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(folders) else None

    before, interval = threading.gettrace(), sys.getswitchinterval()
    threading.settrace(trace)
    sys.setswitchinterval(SWITCHES)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        threading.settrace(before)  # type: ignore[arg-type]
