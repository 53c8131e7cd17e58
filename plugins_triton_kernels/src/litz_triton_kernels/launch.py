"""Kernels in Triton that the user wrote: compiled by Triton for what their arguments are, launched as litz's own are.

In: a `KernelSource` whose settings (see `lowering`) say which kernel of torch's table it is, what each of its
parameters is, and the grid of each configuration. Out: a function of pointers and sizes that launches it on the
current stream. As in Triton, a kernel is compiled once for each combination of what it may assume of its arguments: a
pointer is a multiple of 16, a number is 1, is a multiple of 16, needs 64 bits. Where there are several configurations,
the first call with each key measures them, on memory that has its old values again afterwards.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch

from litz.errors import KernelBuildError
from litz.targets.triton import cuda_driver, native_launch
from litz.targets.triton.build import Binary, with_scratch
from litz.targets.triton.compile import count_parameters, retried
from litz_plugins import CodegenContext, KernelSource

from .torch_table import user_kernel

Special = tuple[str, ...]
"""What a compilation assumes of each argument that is known at run time: "16", "1", "" and, of a number that needs 64
bits, "wide" or "wide16"."""

WARM_UP, RUNS = 2, 7
"""Launches of a configuration that do not count, and those whose median does."""

_STAND_INS = {"16": 16, "1": 1, "": 7, "wide16": 2**40, "wide": 2**40 + 1}
_compiling = threading.RLock()


@dataclass(frozen=True)
class Built:
    """A compiled kernel. passed: (kind, text) of each argument; a constant's text is its bits."""

    binary: Binary
    passed: tuple[tuple[str, str], ...]


Provide = Callable[[int, Special], Built]
"""Compiles a configuration, by its number, or looks it up."""


@dataclass(frozen=True)
class _Pointer:
    """A tensor as far as Triton's compiler looks at it."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        return self.address

    @staticmethod
    def ptr_range() -> int:
        return 0


@dataclass(frozen=True)
class Call:
    """The settings of the source of a user's kernel, read from their JSON form.

    - `user_kernel`, `constants`: numbers in its tables; `options`: of Triton's compiler; `given`: constants that the
      tables do not have;
    - `parameters`: see below; `grids`: three texts for each configuration; `key`: texts by whose values one is chosen;
    - `written`: (address, bytes), as texts, of memory that the kernel writes, where there are several configurations.

    Texts are Python over a0, a1, ..., the arguments of a launch.
    """

    source: KernelSource

    @property
    def parameters(self) -> Sequence[Sequence[str]]:
        """Returns rows: (name, "pointer", text, dtype), (name, "int" or "float", text) or (name, "constant", repr)."""
        found: Sequence[Sequence[str]] = self.source.settings["parameters"]
        return found

    @cached_property
    def special(self) -> tuple[str, ...]:
        """Returns the texts of the arguments that a compilation may assume a fact about, in the order of `Special`."""
        return tuple(text for _, kind, text, *_ in self.parameters if kind in ("pointer", "int"))

    @property
    def listed(self) -> str:
        """Returns the names of the launch's arguments as text: "a0, a1, ..."."""
        return ", ".join(f"a{n}" for n in range(len(self.source.arguments)))

    def special_text(self) -> str:
        """Returns Python text that makes the `Special` of a call."""
        kinds = {text: kind for _, kind, text, *_ in self.parameters}
        parts = [
            f'"16" if not {text} & 15 else ""' if kinds[text] == "pointer" else f"kind({text})" for text in self.special
        ]
        return f"({''.join(f'{part}, ' for part in parts)})"


def kind_of(number: int) -> str:
    """Returns the fact that Triton assumes of an integer argument: it is 1, a multiple of 16, or neither."""
    if number == 1:
        return "1"
    wide = "" if -(2**31) <= number < 2**31 else "wide"
    return wide if number % 16 else f"{wide}16"


# ---------------------------------------------------------------------------------------------------------- compiling


def compile_user_kernel(source: KernelSource, config: int, special: Special) -> Built:
    """Compiles a user's kernel by Triton, for its active driver's device. Errors: KernelBuildError."""
    call, settings = Call(source), source.settings
    try:
        kernel = user_kernel(settings["user_kernel"], settings["constants"])
    except (AssertionError, KeyError) as error:
        raise KernelBuildError(
            source.symbol, "triton", "a kernel of the user's is known where it was traced"
        ) from error
    own = kernel.configs[config].all_kwargs() if kernel.configs else {}
    given: dict[str, Any] = {**settings["options"], **settings["given"], **own}
    given |= {name: value for name, value in kernel.constants.items() if name in kernel.parameters}
    assumed = dict(zip(call.special, special, strict=True))
    for name, kind, text, *rest in call.parameters:
        if kind == "pointer":
            given[name] = _Pointer(getattr(torch, rest[0]), 0 if assumed[text] == "16" else 8)
        elif kind == "int":
            given[name] = _STAND_INS[assumed[text]]
        else:
            given[name] = 0.5 if kind == "float" else eval(text)
    try:
        with _compiling:
            compiled = retried(lambda: kernel.function.warmup(grid=(1, 1, 1), **given))
    except Exception as error:
        raise KernelBuildError(source.symbol, "triton", f"{type(error).__name__}: {error}") from error
    return Built(_binary(compiled), _passed(compiled, call))


def _binary(compiled: Any) -> Binary:
    metadata = compiled.metadata
    return Binary(
        compiled.asm["cubin"],
        metadata.name,
        metadata.num_warps * compiled.metadata.target.warp_size,
        metadata.shared,
        count_parameters(compiled.asm["ptx"]),
        getattr(metadata, "global_scratch_size", 0) or 0,
    )


def _passed(compiled: Any, call: Call) -> tuple[tuple[str, str], ...]:
    """Returns what the compiled kernel is launched with: Triton has made some of the parameters constants."""
    kinds = {name: (kind, text) for name, kind, text, *_ in call.parameters}
    found = []
    for name, type_ in compiled.src.signature.items():
        if type_ == "constexpr":
            continue
        kind, text = kinds[name]
        if kind == "constant":
            found.append((type_, str(bits(eval(text), type_))))
        else:
            found.append((type_, text))
    return tuple(found)


def bits(value: float, type_: str) -> int:
    """Returns the number whose lowest bits are those of `value` in `type_`, one of Triton's types."""
    if type_ == "bf16":
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    formats = {"fp16": "<e", "fp32": "<f", "fp64": "<d"}
    return int.from_bytes(struct.pack(formats[type_], value), "little") if type_ in formats else int(value)


# ---------------------------------------------------------------------------------------------------------- launching


class UserLauncher:
    """Launches one kernel. `function` is what callers call, with `source.arguments` as ints.

    device: its index. provide: gives a compiled configuration when it is first needed. native: see
    `litz.targets.triton.build.Launcher`.
    """

    def __init__(
        self, source: KernelSource, device: int, provide: Provide, native: Callable[[], Any] = lambda: None
    ) -> None:
        self.source, self.call, self.device, self.provide, self.native = source, Call(source), device, provide, native
        self.entries: dict[tuple[int, Special], Callable[..., None]] = {}
        self.chosen: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()
        configs = len(source.settings["grids"])
        if configs == 1:
            self.chosen[()] = 0
        self.function = self._function(() if configs == 1 else tuple(source.settings["key"]))

    def _function(self, key: Sequence[str]) -> Callable[..., None]:
        listed, scope = self.call.listed, {"entries": self.entries, "chosen": self.chosen, "kind": kind_of}
        scope |= {"choose": self._choose, "make": self._make}
        text = (
            f"def function({listed}):\n"
            f"    key = ({''.join(f'{item}, ' for item in key)})\n"
            "    config = chosen.get(key)\n"
            f"    special = {self.call.special_text()}\n"
            "    if config is None:\n"
            f"        config = choose(key, special, ({listed},))\n"
            f"    (entries.get((config, special)) or make(config, special))({listed})\n"
        )
        exec(text, scope)
        made: Callable[..., None] = scope["function"]  # type: ignore[assignment]
        return made

    def _make(self, config: int, special: Special) -> Callable[..., None]:
        built = self.provide(config, special)
        binary, passed = built.binary, built.passed
        function = cuda_driver.load_function(
            binary.cubin,
            binary.name,
            self.device,
            binary.threads,
            binary.shared,
            len(passed) + (binary.scratch > 0),
            binary.parameters,
        )
        launch = cuda_driver.make_launch(function, self.native())
        if binary.scratch:
            launch = with_scratch(launch, binary.scratch, self.device)
        texts = [text if kind[0] in "*iu" or text.isdigit() else f"bits({text}, {kind!r})" for kind, text in passed]
        grid = self.source.settings["grids"][config]
        constant = all(text.isdigit() for text in grid)
        test = "" if constant and all(int(text) > 0 for text in grid) else "    if min(grid) > 0:\n    "
        scope: dict[str, Any] = {"launch": launch, "bits": bits}
        exec(
            f"def entry({self.call.listed}):\n"
            f"    grid = ({', '.join(grid)})\n"
            f"{test}    launch({', '.join(['grid', *texts])})\n",
            scope,
        )
        entry: Callable[..., None] = scope["entry"]
        with self._lock:
            return self.entries.setdefault((config, special), entry)

    # ------------------------------------------------------------------------------------------------------- choosing

    def _choose(self, key: tuple[int, ...], special: Special, values: Sequence[int]) -> int:
        """The fastest configuration, by a measurement; the first, for now, where a recording does not allow one."""
        if torch.cuda.is_current_stream_capturing():
            return 0
        with self._lock:
            if key in self.chosen:
                return self.chosen[key]
        best = self._measure(special, values)
        with self._lock:
            return self.chosen.setdefault(key, best)

    def _measure(self, special: Special, values: Sequence[int]) -> int:
        times: dict[int, float] = {}
        problems: list[Exception] = []
        with torch.cuda.device(self.device), self._restored(values):
            for config in range(len(self.source.settings["grids"])):
                try:
                    entry = self.entries.get((config, special)) or self._make(config, special)
                    times[config] = _seconds(lambda entry=entry: entry(*values))  # type: ignore[misc]
                except (KernelBuildError, RuntimeError) as error:  # it wants more registers or memory than there are
                    problems.append(error)
        if not times:
            raise problems[0]
        return min(times, key=times.__getitem__)

    @contextmanager
    def _restored(self, values: Sequence[int]) -> Any:
        """Memory that the kernel writes has its old values again afterwards."""
        scope = {f"a{n}": value for n, value in enumerate(values)}
        places = [[int(eval(text, {}, scope)) for text in pair] for pair in self.source.settings["written"]]
        views = [_memory(address, nbytes, self.device) for address, nbytes in places if nbytes]
        kept = [view.clone() for view in views]
        try:
            yield
        finally:
            for view, old in zip(views, kept, strict=True):
                view.copy_(old)


class _Memory:
    """Bytes at an address of a CUDA device, as other libraries hand them to torch."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: Mapping[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def _memory(address: int, nbytes: int, device: int) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, nbytes), device=torch.device("cuda", device))


def _seconds(run: Callable[[], None]) -> float:
    for _ in range(WARM_UP):
        run()
    found = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


def load(source: KernelSource, context: CodegenContext) -> Callable[..., None]:
    """Returns a function that launches the kernel on the current stream; it takes `source.arguments`, in order, as
    ints.

    What the likely sizes ask for is compiled at once. KernelBuildError if it does not compile.
    """
    index = context.target.index
    device = torch.cuda.current_device() if index is None else index
    compiler, provide = getattr(context.options, "cpp_compiler", None), _compiled(source, device)
    problems = []
    special = expected(source, context.program.hint)
    for config in range(len(source.settings["grids"])):
        try:
            provide(config, special)
        except KernelBuildError as error:
            problems.append(error)
    if len(problems) == len(source.settings["grids"]):
        raise problems[0]
    return UserLauncher(source, device, provide, lambda: native_launch.load(compiler, context.cache.counted())).function


def _compiled(source: KernelSource, device: int) -> Provide:
    def provide(config: int, special: Special) -> Built:
        with torch.cuda.device(device) if torch.cuda.is_available() else nullcontext():
            return compile_user_kernel(source, config, special)

    return provide


def expected(source: KernelSource, hint: Callable[[Any], int]) -> Special:
    """Returns the facts that a call with likely sizes may assume: pointers to whole tensors are aligned."""
    values = [0 if isinstance(item, str) else hint(item) for item in source.arguments]
    scope: dict[str, Any] = {f"a{n}": value for n, value in enumerate(values)}
    call = Call(source)
    found: Special = eval(call.special_text(), {"kind": kind_of}, scope)
    return found


def general(source: KernelSource) -> list[Special]:
    """Returns the two variants that assume nothing: for numbers of 32 bits, and for numbers of 64."""
    call = Call(source)
    pointers = {text for _, kind, text, *_ in call.parameters if kind == "pointer"}
    found = [tuple("" if text in pointers else wide for text in call.special) for wide in ("", "wide")]
    return list(dict.fromkeys(found))


# ----------------------------------------------------------------------------------------------------------- packages


def pack(source: KernelSource, context: CodegenContext, folder: Path, common: Path) -> dict[str, Any]:
    """Writes a kernel's binaries into `folder`, and the module that launches into `common`. Returns what `unpack`
    has to know (`litz_plugins.Exporter`)."""
    native_launch.put_into(common, getattr(context.options, "cpp_compiler", None), context.cache)
    known, files = packed(source, context.program.hint, lambda *what: compile_user_kernel(source, *what))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return known


def unpack(source: KernelSource, files: Mapping[str, Path], data: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the function that launches a kernel from its cubins (`litz_plugins.Exporter`)."""
    provide = unpacked(source, data, lambda name: files[name].read_bytes())
    return UserLauncher(source, 0, provide, lambda: native_launch.load_from(files)).function


def packed(
    source: KernelSource, hint: Callable[[Any], int], provide: Provide
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns what a package knows of the kernel, and its binaries by name: each configuration for what is likely, and
    for all else. A configuration that does not compile is left out."""
    wanted = list(dict.fromkeys([expected(source, hint), *general(source)]))
    built: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for config in range(len(source.settings["grids"])):
        for number, special in enumerate(wanted):
            try:
                found = provide(config, special)
            except KernelBuildError:
                if len(source.settings["grids"]) == 1 and number == 0:
                    raise
                continue
            name = f"{config}-{number}"
            files[f"{name}.cubin"] = found.binary.cubin
            facts = {key: value for key, value in vars(found.binary).items() if key != "cubin"}
            built[name] = {"binary": facts, "passed": found.passed, "config": config, "special": special}
    return {"built": built}, files


def unpacked(source: KernelSource, data: Mapping[str, Any], read: Callable[[str], bytes]) -> Provide:
    """Returns a `Provide` for what is in a package; for anything else a call raises KernelBuildError. read: a binary,
    by name."""

    def provide(config: int, special: Special) -> Built:
        wide = any(item.startswith("wide") for item in special)
        for wanted in (special, *general(source)):
            if wanted != special and wide and not any(item.startswith("wide") for item in wanted):
                continue
            for name, item in data["built"].items():
                if item["config"] == config and tuple(item["special"]) == wanted:
                    passed = tuple((kind, text) for kind, text in item["passed"])
                    return Built(Binary(read(f"{name}.cubin"), **item["binary"]), passed)
        raise KernelBuildError(source.symbol, "litz_aot.load", "the package has no binary for arguments like these")

    return provide


__all__ = ["UserLauncher", "compile_user_kernel", "expected", "load", "pack", "packed", "unpack", "unpacked"]
