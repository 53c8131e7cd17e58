"""From a program to what is wrong with it, one at a time or in batches that share one run of the C++ compiler."""

from __future__ import annotations

import re
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from .compare import Complaint, Expected, complaints
from .execute import Executable, FuzzCompiler, Peer, Way, default_device, trained
from .gradients import expected_gradients, gradients
from .inputs import InputSpec, lie_apart_alike, make_inputs
from .program import FuzzProgram
from .reference import Reference, Rejected, reference_of
from .tiles import TilesWrong
from .together import Together
from .torch_alone import ends_at_an_assertion

NUMBERS_REFUSE = (ValueError, ArithmeticError)
"""The errors of Python's own numbers, such as `math.sqrt(-1.0)`; ops raise others."""
TIME_LIMIT = 120
"""Seconds of the process's own time for one stage of one program."""
WAITING_LIMIT = 10 * TIME_LIMIT
"""Seconds by the clock: a process that other work keeps from a processor is not slow, one that waits for ever is."""


@dataclass(frozen=True)
class Failure:
    """A failure of a program. kind: what a shrunk program must show too, such as "compile: CodegenError"."""

    program: FuzzProgram
    kind: str
    message: str


class TorchFails(Exception):
    """The program cannot be captured, for a reason that is torch's own."""


@dataclass
class _Prepared:
    """A program that is compiled and waits for its kernels."""

    program: FuzzProgram
    executable: Executable
    rounds: list[_Round]


@dataclass(frozen=True)
class _Round:
    """Inputs to run a program with, and what should come out: values and gradients, or an error."""

    specs: tuple[InputSpec, ...]
    values: list[Expected]
    grads: list[Expected]
    error: type[Exception] | None = None
    what: str = ""
    """What differs from the compile, in words."""
    written: frozenset[int] = frozenset()
    """The numbers of the inputs that eager writes."""
    bits: bool = False
    """Are values to be eager's bit for bit?"""

    def complaints(
        self, outputs: Sequence[Any], grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[Complaint]:
        """Returns what is wrong with the outputs, the gradients and the inputs afterwards."""
        values = complaints([*outputs, *inputs], self.values, bits=self.bits)
        return values + complaints(grads, self.grads, aliases=False, bits=self.bits)

    def named(self, results: _Results) -> dict[str, torch.Tensor]:
        """Returns the results by the names that complaints have."""
        outputs, grads, inputs = results
        names = [value.name for value in (*self.values, *self.grads)]
        return dict(zip(names, (*outputs, *inputs, *grads), strict=True))


_Results = tuple[Sequence[Any], Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""The outputs, the gradients and the inputs afterwards."""


class Checker:
    """Checks programs with one compiler, a `FuzzCompiler` with its defaults if None."""

    def __init__(self, compiler: FuzzCompiler | None = None) -> None:
        self.compiler = compiler or FuzzCompiler()
        self.compiled, self.device, self.strict = self.compiler.compiled, self.compiler.device, self.compiler.strict
        self.torch_failures: dict[str, int] = {}
        self.runs: Counter[str] = Counter()
        """How often programs ran: by way, and with "second sizes"."""
        self.together = Together(self.runs, self.compiler.batch.folder.name)
        self.note: Callable[[FuzzProgram], None] = lambda program: None
        """Called before a program is compiled or run: the last one noted is the one that crashed."""

    def check(self, program: FuzzProgram) -> Failure | None:
        """Returns what is wrong with one program, or None. Raises Rejected if unfair, TorchFails if not captured."""
        self._begin(program)
        prepared = self._prepare(program, reference_of(program))
        if isinstance(prepared, Failure) or not self.compiled:
            return prepared if isinstance(prepared, Failure) else None
        self.compiler.finish()
        return self._complete(prepared)

    def check_all(self, programs: Sequence[tuple[FuzzProgram, Reference]]) -> list[Failure]:
        """Returns what is wrong with any of many programs."""
        failures: list[Failure] = []
        waiting: list[_Prepared] = []
        for program, reference in programs:
            if program.raises and self.device != "cpu":
                continue  # there an index out of range ends the process's use of the device, in eager as well
            try:
                prepared = self._prepare(program, reference)
            except TorchFails as error:
                self._excuse(str(error).splitlines()[0][:100] if str(error) else repr(error))
                continue
            if isinstance(prepared, Failure):
                failures.append(prepared)
            else:
                waiting.append(prepared)
        if self.compiled:
            self.compiler.finish()
            failures += [failure for failure in map(self._complete, waiting) if failure is not None]
        if any(program.by_dynamo for program, _ in programs):
            self.compiler.forget()
        return failures

    def _prepare(self, program: FuzzProgram, reference: Reference) -> _Prepared | Failure:
        specs = program.inputs
        self._begin(program)
        try:
            with _deadline():
                executable = self.compiler.compile(program, self._inputs(program, specs))
        except Exception as error:
            return self._raised(program, "compile", error)
        if executable.broken:
            return self._raised(program, "compile", executable.broken[0])
        prepared = _Prepared(program, executable, [self._round(program, reference, specs)])
        for what, other in program.other_inputs.items():
            with suppress(Rejected):
                again = reference_of(program, other)
                if executable.accepts(self._inputs(program, other)):
                    self.runs[what] += 1
                    prepared.rounds.append(self._round(program, again, other, what))
        return self._run(prepared, "interpreted") or prepared

    def _complete(self, prepared: _Prepared) -> Failure | None:
        self._begin(prepared.program)
        return self._run(prepared, "compiled") or self._together(prepared)

    def _together(self, prepared: _Prepared) -> Failure | None:
        program = prepared.program
        if not program.together or self.device != "cpu":
            return None
        try:
            with _deadline():
                # Where eager refuses gradients, nobody has compiled a backward.
                wrong = self.together.complaint(program, prepared.executable, bool(prepared.rounds[0].grads))
        except Exception as error:
            return self._raised(program, "together", error)
        return Failure(program, "together: wrong", wrong) if wrong else None

    def _begin(self, program: FuzzProgram) -> None:
        self.settle()  # what still ends the process is the program's that was noted before
        self.note(program)

    def run_alone(self, program: FuzzProgram) -> None:
        """Runs a program with each of its inputs by torch alone. Raises where that ends the process's use of the
        device."""
        for specs in (program.inputs, *program.other_inputs.values()):
            for run in (self._run_eager, self._run_plain):
                with suppress(Exception):
                    run(program, specs)
                self.settle()

    def _run_eager(self, program: FuzzProgram, specs: tuple[InputSpec, ...]) -> _Results:
        inputs = self._inputs(program, specs)
        with torch.set_grad_enabled(program.grad), default_device(self.device):
            outputs = program.function()(*inputs)
            return outputs, gradients(outputs, inputs) if program.grad else [], inputs

    def _run_plain(self, program: FuzzProgram, specs: tuple[InputSpec, ...]) -> None:
        self._run_peer(program, specs, "plain", program.grad)

    def settle(self) -> None:
        """Waits for the device. Once a kernel has met a bad address, every wait raises: the process is at its end."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _run(self, prepared: _Prepared, way: Way) -> Failure | None:
        program = prepared.program
        for each in prepared.rounds:
            round_ = replace(each, bits=self.strict and way == "compiled")  # the interpreter is no kernel
            specs, grads = round_.specs, round_.grads
            inputs = self._inputs(program, specs)
            try:
                with _deadline(), torch.set_grad_enabled(program.grad), default_device(self.device):
                    self.runs[way] += 1
                    outputs = prepared.executable.run(inputs, way)
                    found = gradients(outputs, inputs) if grads else []
                if way == "interpreted" and grads and self.compiled:
                    self.compiler.finish()  # the backward was compiled just now; more rounds may follow
            except Exception as error:
                # The interpreter's own calls decide what they raise.
                if round_.error is not None and (way == "interpreted" or isinstance(error, round_.error)):
                    self.runs["refused"] += 1
                    continue
                if self._torch_raises(program, (specs, prepared.rounds[0].specs), error):
                    self._excuse(f"{type(error).__name__} before litz")
                    continue
                return self._raised(program, way, error)
            if round_.error is not None:
                if way == "interpreted" or self._torch_accepts(program, specs, round_.error):
                    continue
                return Failure(program, f"{way}: accepted", f"eager raises {round_.error.__name__}")
            wrong = round_.complaints(outputs, found, inputs)
            if wrong:
                wrong = self._ours(program, round_, wrong)
            if wrong:
                wrong = self._unpromised(program, round_, wrong, (outputs, found, inputs))
            first = replace(prepared.rounds[0], bits=round_.bits)
            if wrong and lie_apart_alike(specs, first.specs, first.written):
                # What was compiled for separate tensors is right for parts of one where no element that is written is
                # in two, while AOTAutograd makes another graph where it traces those: what torch gets wrong is what it
                # compiled.
                wrong = self._ours(program, first, wrong)
            if wrong:
                again = f" (called again: {round_.what})" if round_.what else ""
                return Failure(program, f"{way}: wrong {wrong[0].about}", "; ".join(map(str, wrong)) + again)
        return None

    def _ours(self, program: FuzzProgram, round_: _Round, wrong: list[Complaint]) -> list[Complaint]:
        """Less what AOTAutograd's graph gets wrong when torch itself runs it in this round. Wrong strides are
        also torch's where its decompositions make them, where the traced graph promises others than eager has, or where
        AOTAutograd rebuilds views of inputs, whose gradients then lie as the inputs do; a wrong value from a
        decomposition counts, as litz chose to decompose."""
        peers: tuple[Peer, ...] = ("plain", "decomposed", "laid out", "rebuilt")
        if self.device != "cpu":
            wrong = [c for c in wrong if not self._has_device(program, round_, c)]
        for peer in peers:
            try:
                theirs = round_.complaints(*self._run_peer(program, round_.specs, peer, bool(round_.grads)))
            except Exception:
                continue
            known = {(c.name, c.about) for c in theirs if peer == "plain" or c.about == "strides"}
            excused = [c for c in wrong if (c.name, c.about) in known]
            for about in {c.about for c in excused}:
                self._excuse(f"{about}: wrong before litz")
            wrong = [c for c in wrong if c not in excused]
            if not wrong:
                break
        return wrong

    def _has_device(self, program: FuzzProgram, round_: _Round, wrong: Complaint) -> bool:
        """Returns whether eager has the type or the strides on the device. What is expected is the CPU's. Statements
        that an output is not made from do not run: the device may have no kernel for them."""
        if wrong.about not in ("type", "strides"):
            return False
        if wrong.name in program.outputs:
            program = replace(program, outputs=(wrong.name,)).without_dead_code()
        try:
            outputs, grads, inputs = self._run_eager(program, round_.specs)
        except Exception:
            return False
        made = dict(zip((*program.outputs, *(v.name for v in round_.grads)), (*outputs, *grads), strict=False))
        value = made.get(wrong.name, dict(zip((f"x{n}" for n in range(len(inputs))), inputs)).get(wrong.name))
        wanted = next(row for row in (*round_.values, *round_.grads) if row.name == wrong.name)
        if value is None or wrong.about not in [c.about for c in complaints([value], [wanted], aliases=False)]:
            return False
        self._excuse(f"{wrong.about}: the device's own")
        return True

    def _unpromised(
        self, program: FuzzProgram, round_: _Round, wrong: list[Complaint], ours: _Results
    ) -> list[Complaint]:
        """Less the values that torch promises, and those that its libraries give on the device. Promised are those that
        AOTAutograd's own graph gives where torch runs each op and the result then lies as its fake tensor says: a
        kernel's may lie otherwise, and as_strided sees where. On another device eager may be as wrong where a library's
        kernel is: cuDNN's attention of a tensor that begins at no multiple of 16 bytes."""
        peers: dict[Peer | None, str] = {"promised": "promised before litz"}
        if self.device != "cpu":
            peers[None] = "the device's own"
        for peer, reason in peers.items():
            try:
                theirs = self._run_peer(program, round_.specs, peer, bool(round_.grads))
            except Exception:
                continue
            names = {(c.name, c.about) for c in round_.complaints(*theirs)}
            mine, their = round_.named(ours), round_.named(theirs)
            excused = [
                c
                for c in wrong
                if c.about == "values" and (c.name, c.about) in names and _close(mine[c.name], their[c.name])
            ]
            if excused:
                self._excuse(f"values: {reason}")
            wrong = [c for c in wrong if c not in excused]
        return wrong

    def _torch_raises(
        self, program: FuzzProgram, calls: tuple[tuple[InputSpec, ...], tuple[InputSpec, ...]], error: Exception
    ) -> bool:
        """Returns whether torch itself raises the same, where it runs AOTAutograd's graph or, if litz's error is an
        assertion, dynamo's. calls: the inputs of the call that raised, and those that litz traced with, as what is
        traced may differ. AOTAutograd drops an assertion that dynamo made of its own assumptions during capture; litz
        keeps the assertion. On another device eager may refuse what the CPU took, also where no result depends on that:
        what litz leaves to torch (inputs that share memory) runs as it is written."""
        peers: list[Peer | None] = ["plain"]
        if self.device != "cpu":
            peers.append(None)
        if program.by_dynamo and _is_assertion(error):
            peers.append("captured")
        for peer, traced in product(peers, dict.fromkeys(calls)):
            try:
                self._run_peer(program, calls[0], peer, program.grad, traced)
            except Exception as theirs:
                if type(theirs) is type(error) and (peer != "captured" or _is_assertion(theirs)):
                    return True
        return False

    def _torch_accepts(self, program: FuzzProgram, specs: tuple[InputSpec, ...], refused: type[Exception]) -> bool:
        """Returns whether AOTAutograd's graph or dynamo's raises nothing where torch itself runs it, and what eager
        refuses is no assertion in the graph that dynamo captured: litz keeps those, also where AOTAutograd loses one.
        Dynamo's may have other operations than the program: `x.add_(y, alpha=2)` is `x.add_(y * 2)` in torch 2.11,
        which reads nothing that it writes. Of Python's numbers, dynamo drops those that nothing reads, so those that no
        result depends on may go, and AOTAutograd makes a tensor's op of a number's where a decomposition leaves one
        that it knows: `math.sqrt(n) - x` has a square root that raises nothing."""
        if ends_at_an_assertion(program, self._inputs(program, specs)):
            return False
        peers: list[Peer] = ["plain"]
        if program.by_dynamo:
            peers.append("captured")
        if issubclass(refused, NUMBERS_REFUSE):
            peers += ["living", "decomposed"]
        for peer in peers:
            with suppress(Exception):
                self._run_peer(program, specs, peer, False)
                self._excuse("accepted before litz")
                return True
        return False

    def _run_peer(
        self,
        program: FuzzProgram,
        specs: tuple[InputSpec, ...],
        peer: Peer | None,
        grads: bool,
        traced: tuple[InputSpec, ...] | None = None,
    ) -> _Results:
        """Without litz's stages. peer: None for eager, on the device. traced: the inputs to trace with, if others."""
        if peer is None:
            return self._run_eager(program, specs)
        executable = self.compiler.compile(program, self._inputs(program, traced or specs), peer)
        inputs = self._inputs(program, specs)
        with _deadline(), torch.set_grad_enabled(program.grad), default_device(self.device):
            outputs = executable.run(inputs, "traced")
            return outputs, gradients(outputs, inputs) if grads else [], inputs

    def _excuse(self, reason: str) -> None:
        self.torch_failures[reason] = self.torch_failures.get(reason, 0) + 1

    def _inputs(self, program: FuzzProgram, specs: tuple[InputSpec, ...]) -> list[torch.Tensor]:
        values = make_inputs(specs)
        if self.device != "cpu":
            values = _moved(values, self.device)
        return trained(program, values)

    def _round(
        self, program: FuzzProgram, reference: Reference, specs: tuple[InputSpec, ...], what: str = ""
    ) -> _Round:
        if reference.raised is not None:
            return _Round(specs, [], [], reference.raised, what)
        names = [*program.outputs, *(f"x{n}" for n in range(len(specs)))]
        noisy = reference.noisy
        if self.device != "cpu":  # g++ is told not to contract, Triton is not
            with suppress(Rejected):
                noisy = reference_of(program, specs, contracts=True).noisy
        eager, exact, tiny = reference.eager, reference.exact, "tiny" in reference.scales
        values = [
            Expected(n, eager[n], exact[n], noisy[n], reference.rounded_in.get(n, frozenset()), tiny) for n in names
        ]
        grads = expected_gradients(replace(program, inputs=specs), reference) if program.grad else []
        # Views share their memory's count of writes.
        written = frozenset(n for n in range(len(specs)) if reference.eager[f"x{n}"]._version)
        return _Round(specs, values, grads, what=what, written=written)

    def _raised(self, program: FuzzProgram, stage: str, error: Exception) -> Failure:
        if stage == "compile" and not _is_ours(error):
            raise TorchFails(f"{type(error).__name__}: {error}") from error
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        text = "".join(traceback.format_exception(error))
        return Failure(program, f"{stage}: {type(error).__name__} {type(root).__name__}", text)


_OURS = ("lower", "schedule", "codegen", "tiles", "targets", "runtime", "ir", "cost", "report", "passes",
         "decompositions.py", "foreach.py")  # fmt: skip


_PLUGINS = re.compile(r"/litz_(?!plugins|testing)\w+/")
"""What litz's own plugins are written in: nothing of them runs while torch captures a program."""


def _is_ours(error: BaseException) -> bool:
    """Returns whether litz's own stages or plugins raised the error."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, TilesWrong):
            return True
        for frame in traceback.extract_tb(current.__traceback__):
            _, found, rest = frame.filename.partition("/litz/")
            if _PLUGINS.search(frame.filename):
                return True
            if found and any(part in rest.split("/") for part in _OURS):
                return True
        current = current.__cause__ or current.__context__
    return False


def _is_assertion(error: Exception) -> bool:
    """Returns whether a captured graph's own assertion failed, by the message that torch's and litz's begin with."""
    return type(error) is RuntimeError and str(error).startswith("Runtime assertion failed")


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two results are the same, by torch's tolerances for the type."""
    try:
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), equal_nan=True)
    except AssertionError:
        return False
    return True


def _moved(values: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """On the device, with the same strides, which `.to` would not keep, the same memory in common, and read as negated
    or conjugated where the values are."""
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in values}
    there = {start: storage.to(device=torch.device(device)) for start, storage in storages.items()}
    moved = [
        torch.empty(0, dtype=value.dtype, device=device).set_(
            there[value.untyped_storage().data_ptr()], value.storage_offset(), value.shape, value.stride()
        )
        for value in values
    ]
    moved = [torch._neg_view(there) if value.is_neg() else there for there, value in zip(moved, values, strict=True)]
    return [there.conj() if value.is_conj() else there for there, value in zip(moved, values, strict=True)]


@contextmanager
def _deadline() -> Iterator[None]:
    def expire(number: int, frame: Any) -> None:
        raise TimeoutError(f"more than {TIME_LIMIT} s, or {WAITING_LIMIT} s of waiting")

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, TIME_LIMIT), (signal.ITIMER_REAL, signal.SIGALRM, WAITING_LIMIT))
    old = {number: signal.signal(number, expire) for _, number, _ in timers}
    for timer, _, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, number, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, old[number])
