"""Every exception that a user of litz can see, each with one message: what happened, where, what to do.

Fields are strings and numbers, so that every error can be pickled from a build worker or another rank. The plugin
errors are defined in `litz_plugins.errors` and re-exported here.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence

from litz_plugins.errors import (  # noqa: F401  # users find plugins' errors here too
    DuplicatePluginError,
    DuplicateRegistrationError,
    HookSignatureError,
    LitzError,
    PassOrderError,
    PluginError,
    PluginHookError,
    PluginLoadError,
    PluginWarning,
    UnknownHookError,
    describe,
    nearest,
)

_REPORT_IT = "this is a bug in litz; please report it. To go on without litz for this graph: "
_FALL_BACK = "options={'fallback': 'eager'}"


class UnknownOptionError(LitzError):
    """An option that neither core nor a loaded plugin has. ``suggestion`` is the nearest name, or ''. ``instead`` says
    what to write, where that is known; ``install`` where to get ``missing_plugin``, whose option it is."""

    def __init__(
        self, option: str, known: Iterable[str], *, missing_plugin: str = "", install: str = "", instead: str = ""
    ) -> None:
        self.option = option
        self.suggestion = "" if instead else nearest(option, known)
        self.missing_plugin = missing_plugin
        if instead:
            todo = instead
        elif missing_plugin:
            todo = f"{install or f'install the plugin {missing_plugin!r}'}; or drop the option"
        elif self.suggestion:
            todo = f"did you mean {self.suggestion!r}?"
        else:
            todo = "`litz options` lists every option"
        super().__init__(f"there is no option {option!r}", where="options=", todo=todo)


class InvalidOptionError(LitzError):
    """An option's value is of the wrong type, none of its choices, or not what the option can read. ``accepted`` says
    what is; ``suggestion`` is the nearest choice, or ''; ``why`` says what is wrong with the value, or ''."""

    def __init__(
        self,
        option: str,
        value: object,
        accepted: str,
        *,
        source: str = "options=",
        suggestion: str = "",
        why: str = "",
    ) -> None:
        self.option = option
        self.value = repr(value)
        self.accepted = accepted
        self.source = source
        self.suggestion = suggestion
        self.why = why
        said = f": {why}" if why else f"; did you mean {suggestion!r}?" if suggestion else ""
        super().__init__(f"option {option!r} cannot be {self.value}{said}", where=source, todo=f"give it {accepted}")


class CompilerNotFoundError(LitzError):
    """No C++ compiler. ``tried`` are the commands that were looked for."""

    def __init__(self, tried: Sequence[str] = ()) -> None:
        self.tried = tuple(tried)
        super().__init__(
            "no C++ compiler was found, and litz needs one to compile for the CPU",
            where=f"looked for {', '.join(self.tried)}" if self.tried else "",
            todo=compiler_install_hint(),
        )


def compiler_install_hint(platform: str = sys.platform) -> str:
    """Returns what to type to get a C++ compiler with OpenMP, by ``sys.platform``."""
    if platform == "darwin":
        how = "`xcode-select --install` for clang, and `brew install libomp` for threads"
    elif platform == "win32":
        how = "install the Visual Studio Build Tools (C++), or use WSL"
    else:
        how = "`apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora, RHEL) or `conda install gxx`"
    return f"{how}; or name one: CXX=/path/to/g++ or options={{'cpp.compiler': ...}}. `litz doctor` tests it"


class KernelBuildError(LitzError):
    """A generated kernel did not compile.

    kernel: its name. command: as run, a list or one string. stderr: all of it; the message shows its end. source: path
    of the generated source, which is kept.
    """

    _SHOWN = 2000  # characters of stderr in the message: the last errors, without pages of template notes

    def __init__(self, kernel: str, command: Sequence[str] | str, stderr: str, source: str = "") -> None:
        self.kernel = kernel
        self.command = command if isinstance(command, str) else shlex.join(command)
        self.stderr = stderr
        self.source = str(source)
        tail = stderr.strip()[-self._SHOWN :]
        where = f"source {self.source}; command {self.command}" if self.source else f"command {self.command}"
        super().__init__(
            f"kernel {kernel!r} did not build:\n{tail or '(the compiler said nothing)'}",
            where=where,
            todo="run the command to see everything; `litz doctor` checks the compiler. To go on without litz for "
            f"this graph: {_FALL_BACK}",
        )


class CompileError(LitzError):
    """A stage ended in an error that nobody foresaw. graph: its name. stage: "schedule", "generate", ..."""

    def __init__(self, graph: str, stage: str, cause: BaseException | str) -> None:
        self.graph = graph
        self.stage = stage
        self.cause = describe(cause)
        super().__init__(
            f"litz failed to compile {graph}: {self.cause}",
            where=_place(stage=stage, graph=graph),
            todo=_REPORT_IT + _FALL_BACK,
        )


class LoweringError(LitzError):
    """An op's lowering failed. op: "aten.add.Tensor". node: of the graph. todo: what the user can do; unset:
    report it. Of a plugin's lowering it is a PluginHookError."""

    def __init__(self, op: str, node: str, problem: str, *, todo: str = "") -> None:
        self.op = str(op)
        self.node = str(node)
        self.problem = problem
        super().__init__(
            f"{self.op} could not be lowered: {problem}",
            where=_place(stage="lower", node=self.node),
            todo=todo or _REPORT_IT + _FALL_BACK,
        )


class CodegenError(LitzError):
    """No source could be generated for a kernel. device: torch's name of it, such as "cuda:0"."""

    def __init__(self, kernel: str, problem: str, *, device: str = "", todo: str = "") -> None:
        self.kernel = kernel
        self.problem = problem
        self.device = device
        super().__init__(problem, where=_place(kernel=kernel, device=device), todo=todo or _REPORT_IT + _FALL_BACK)


class VerifyError(LitzError):
    """A verifier found a noun that breaks its rules (debug mode).

    noun: "graph", "program", "schedule" or "kernel plan". name: which one. complaints: a line for each broken rule.
    """

    def __init__(self, noun: str, name: str, complaints: Sequence[str] | str) -> None:
        self.noun = noun
        self.name = name
        self.complaints = (complaints,) if isinstance(complaints, str) else tuple(complaints)
        lines = "".join(f"\n  - {complaint}" for complaint in self.complaints)
        super().__init__(f"the {noun} {name!r} breaks rules:{lines}", todo=_REPORT_IT + _FALL_BACK)


class StaleEntryError(LitzError):
    """The graph cache has, under a graph's key, something else than compiling it gives (debug mode)."""

    def __init__(self, graph: str, problem: str) -> None:
        self.graph, self.problem = graph, problem
        super().__init__(
            f"the graph cache's entry for {graph} differs from a new compile of it: {problem}",
            todo="run `litz cache clear`, or set LITZ_GRAPH_CACHE=0. A plugin that decides by anything beyond its "
            "source and options has to tell it by litz_cache_fingerprint; if none does, this is a bug in litz: "
            "please report it",
        )


class IndexRangeError(IndexError, RuntimeError):
    """An index, a target or a position in the data of a call is out of range.

    kernel: which found it. size: what the index must be less than, with the values of symbols. what: the dimension and
    the op. Eager raises an IndexError for some ops and a RuntimeError for others; this is both, so that what catches
    eager's catches litz's.
    """

    def __init__(self, kernel: str, size: str, what: str = "") -> None:
        self.kernel, self.size, self.what = kernel, size, what
        super().__init__(kernel, size, what)

    def __str__(self) -> str:
        return f"{self.kernel}: index out of range for size {self.size}{f' of {self.what}' if self.what else ''}"


ZERO_DIVISION = "a divisor that is 0"
"""The name that a `bounded` node has in place of a dimension where it checks a divisor that only a run tells."""


class IntegerDivisionError(ZeroDivisionError, RuntimeError):
    """An integer is divided by zero. Eager on a CPU raises a RuntimeError that says ZeroDivisionError; this error is
    both.

    kernel: which found it. op: the ATen op that divides.
    """

    def __init__(self, kernel: str, op: str) -> None:
        self.kernel, self.op = kernel, op
        super().__init__(kernel, op)

    def __str__(self) -> str:
        return f"ZeroDivisionError: {self.kernel}: an integer is divided by zero in {self.op}"


def out_of_bounds(kernel: str, size: str, what: str) -> IndexRangeError | IntegerDivisionError:
    """Returns the error of a `bounded` node that does not hold; the arguments are those of IndexRangeError."""
    if what.startswith(ZERO_DIVISION):
        return IntegerDivisionError(kernel, what.removeprefix(ZERO_DIVISION).removeprefix(" in "))
    return IndexRangeError(kernel, size, what)


class FrozenWeightsError(LitzError):
    """A graph that was compiled with frozen weights is called with others.

    graph: which. weight: the first that differs. replaced: whether it is another tensor, and not the same one with
    other values.
    """

    def __init__(self, graph: str, weight: str, *, replaced: bool = False) -> None:
        self.graph = graph
        self.weight = weight
        self.replaced = replaced
        change = "is another tensor than the one that was frozen" if replaced else "was written after it was frozen"
        super().__init__(
            f"the weight {weight} {change}: with freezing, its values are part of the code",
            where=f"graph {graph}",
            todo="call torch._dynamo.reset() and compile again when weights have changed, or compile without freezing",
        )


class MissingMemoryError(LitzError):
    """A compiled graph is called with a tensor that has elements and no memory.

    name: of the graph's input. device: the tensor's. nbytes: of its storage.
    """

    def __init__(self, name: str, device: str, nbytes: int) -> None:
        self.name = name
        self.device = device
        self.nbytes = nbytes
        why = "its storage was freed or resized" if device != "meta" else "tensors on the meta device have none"
        super().__init__(
            f"an input has elements, but no memory: {why}",
            where=f"input {name}, on {device}, a storage of {nbytes} bytes",
            todo="give the tensor its memory back before the call (FSDP: unshard), or call with a real tensor",
        )


class TracedCallError(LitzError, RuntimeError):
    """Compiled code is called under a mode that traces, whose tensors have no memory. mode: its type."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        super().__init__(
            f"a backward, or a package, is called under {mode}, which sees none of its operations",
            todo="call the backward under the mode under which its forward was called, and a package under none",
        )


class ForeignResultError(LitzError, RuntimeError):
    """A call returned something else than its fake kernel says. call: the op. found, expected: what."""

    def __init__(self, call: str, found: str, expected: str) -> None:
        self.call = call
        self.found = found
        self.expected = expected
        super().__init__(
            f"{call} returned {found}, where its fake kernel says {expected}",
            where=f"call of {call}",
            todo="correct its fake kernel (torch.library.register_fake); torch.library.opcheck finds such differences",
        )


class FunctionPlaceError(LitzError):
    """A function that a graph calls cannot be named for another process, or what has the name is another function."""

    def __init__(self, problem: str, *, todo: str = "") -> None:
        self.problem = problem
        super().__init__(problem, where="the functions of a graph", todo=todo)


class CacheError(LitzError):
    """The cache folder cannot be used, or a file in it is not what it should be. path: which."""

    def __init__(self, problem: str, *, path: str = "", todo: str = "") -> None:
        self.problem = problem
        self.path = str(path)
        super().__init__(
            problem,
            where=self.path,
            todo=todo or "`litz cache clear` empties it; LITZ_CACHE_DIR names another folder, LITZ_CACHE=0 uses none",
        )


NOT_OURS: tuple[type[LitzError], ...] = (
    UnknownOptionError,
    InvalidOptionError,
    CompilerNotFoundError,
    CacheError,
    FrozenWeightsError,
    DuplicatePluginError,
    DuplicateRegistrationError,
    HookSignatureError,
    PassOrderError,
    PluginLoadError,
    UnknownHookError,
)
"""Errors whose message says everything: the change to make lies with the caller, the machine or an installed plugin."""


def _place(**parts: str) -> str:
    """Returns the known parts of where an error arose, such as "stage lower, node add_3"."""
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
