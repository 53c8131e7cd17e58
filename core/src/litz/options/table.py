"""Options: in, what the user passed to torch.compile, the environment and plugins' specs; out, one frozen `Options`.

The only file of litz that reads the environment. The table is the fields of `Options`: a field is an option, and its
metadata say what a user needs to know. A value comes from ``options=`` first, then the environment, then a plugin's
option that implies the value, then the mode, then the default. Names have dots where fields have underscores.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from litz.errors import InvalidOptionError, UnknownOptionError
from litz.origins.trust import make_trust
from litz_plugins import strict
from litz_plugins.errors import nearest
from litz_plugins.missing import how_to_install
from litz_plugins.records import OptionSpec, Secret
from litz_plugins.records.function import with_functions
from litz_plugins.roster import SECONDS
from litz_plugins.units import parse_size
from litz_plugins.vetoes import read_preferences, read_vetoes
from litz_plugins.words import OWN_DISTS

from .inductor_names import in_litz

T = TypeVar("T")

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}
"""torch.compile's modes, and what each sets."""


def default_cache_dir() -> Path:
    """Returns the cache folder for when no option sets one: the platform's folder for caches, e.g. ~/.cache/litz on
    Linux."""
    try:
        import platformdirs
    except ImportError:  # a machine where litz was installed with --no-deps
        return Path("~/.cache/litz").expanduser()
    return Path(platformdirs.user_cache_dir("litz", appauthor=False))


def _option(default: Any, help: str, **about: Any) -> Any:
    """Returns a field of `Options`. default: a value, or a function that returns one. about: the fields of the
    `OptionRow` that the field itself does not tell."""
    metadata = {"default": default, "help": help, **about}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_same_code = partial(_option, affects_code=False)
"""Returns a field of `Options` by which no kernel differs (`OptionRow.affects_code`)."""


def _check_march(text: str) -> None:
    """Raises ValueError for what is no one word, and so would be another flag, or none."""
    if not re.fullmatch(r"\w[\w.+=-]*", text, re.ASCII):
        raise ValueError("that is no processor's name")


@dataclass(frozen=True)
class Options:
    """Everything that can be set, fixed for one compile. Make it with `make_options`."""

    mode: str = _option("default", "what to optimize for, as torch.compile's mode=", choices=tuple(MODES))
    debug: bool = _same_code(False, "check every stage's result; slower compiles, clearer errors")
    cache: bool = _same_code(True, "keep compiled kernels on disk and reuse them")
    cache_dir: Path = _same_code(default_cache_dir, "folder of the disk cache")
    cache_limit: int = _same_code(
        4096,
        "MiB that the disk cache may take; what nobody used for the longest time is deleted first. 0: no limit",
        least=0,
        unit=1 << 20,
    )
    cache_shared: tuple[str, ...] = _same_code(
        (),
        "folders of further disk caches, which are looked into and never written to",
        check=lambda paths: [_as_path(path) for path in paths if not path.startswith("~")],  # a home may be missing
        accepts='paths (a list, or commas), as "~/team/litz"',
    )
    trust: tuple[str, ...] = _same_code(
        (),
        "users, and groups as %NAME, whose caches and packages are loaded besides your own and root's",
        check=make_trust,
        accepts='users of this machine by name or number, and groups as %NAME (a list, or commas), as "%staff"',
    )
    graph_cache: bool = _same_code(
        True, "keep compiled graphs in the disk cache and load them in place of compiling again"
    )
    fallback: Literal["error", "eager"] = _same_code(
        "error", "what to do with a graph that does not compile: raise, or run it as it is"
    )
    on_plugin_error: Literal["raise", "disable"] = _same_code(
        "raise", "what to do when a plugin fails: raise, or go on without it and warn"
    )
    plugin_seconds: float = _same_code(
        SECONDS,
        "seconds that one call of a plugin may take, measurements apart, before it has failed. 0: no limit",
        least=0,
    )
    disable_plugins: tuple[str, ...] = _same_code((), "plugins to leave out, by name")
    threads: int | None = _same_code(
        None,
        "kernels to build at a time; unset: one per processor",
        variables=("LITZ_BUILD_WORKERS", "LITZ_THREADS"),
        least=1,
    )
    build_processes: int | None = _same_code(
        None,
        "processes that compile Triton kernels; unset: as many as threads, 16 at most, none with fewer than 4 "
        "processors; 0: this process compiles them",
        least=0,
    )
    report_dir: Path | None = _same_code(None, "folder to write a report of every compile to; unset: none is written")
    progress: bool = _same_code(
        True, "a line on the terminal, by litz-tools, while a compile takes longer than three seconds"
    )
    benchmark_kernels: bool = _same_code(
        False, "write a file beside each kernel for `litz bench-kernels`, which times it alone"
    )
    calibration: Path | None = _option(None, "file, or folder of files, of measured figures; unset: built-in figures")

    cuda_graphs: bool = _option(
        False, "record and replay CUDA graphs, by litz-cudagraphs; set by the reduce-overhead and max-autotune modes"
    )
    max_autotune: bool = _option(False, "measure candidates instead of estimating; the max-autotune modes do")
    max_autotune_gemm: bool = _option(False, "the same for matrix products only, not for convolutions")
    max_autotune_pointwise: bool = _option(False, "the same for the tiles of generated Triton kernels only")
    freezing: bool = _option(
        False, "for inference: parameters become constants of the compiled code, which refuses other weights"
    )
    fallback_random: bool = _option(
        False, "draw random numbers as eager does, value for value: by the library, in program order (slower)"
    )
    fusion: bool = _option(True, "fuse operations into one kernel where that pays")
    max_fusion_size: int | None = _option(
        None, "most nodes of the graph, after decompositions, in one fused kernel; unset: no limit", least=1
    )
    veto: tuple[str, ...] = _same_code(
        (),
        "decisions not to take, by their keys, or @FILE with a key a line; `litz bisect` finds them",
        check=read_vetoes,
        accepts='keys of decisions, and files that can be read as @FILE (a list, or commas), as "fuse"',
    )
    prefer: tuple[str, ...] = _same_code(
        (),
        "decisions to take in a given way, whatever their estimates say: KEY=WAY, as `litz explain` prints them",
        check=read_preferences,
        accepts='KEY=WAY (a list, or commas), as "graph0:layout=no"',
    )
    memory_planning: bool = _option(
        True, "let buffers take over the memory of dead ones, and small ones on CUDA share one allocation"
    )
    memory_pool: bool = _option(True, "keep memory between calls on the CPU, where fresh pages are slow")
    sizes: tuple[int, ...] = _option(
        (), "dynamic sizes to compile for besides those first seen; a call takes the code for the nearest", least=1
    )

    cpp_compiler: str | None = _option(
        None, "C++ compiler; unset: the first of g++, clang++, c++", name="cpp.compiler", variables=("LITZ_CXX", "CXX")
    )
    cpp_march: str = _option(
        "native",
        "processor to compile for, as -march=",
        name="cpp.march",
        check=_check_march,
        accepts='a word that the compiler takes after -march=, as "x86-64-v3" or "armv8.2-a+sve"',
    )
    cpp_qualify: bool = _option(
        True,
        "test the C++ compiler once, construct by construct, and build carefully what it gets wrong",
        name="cpp.qualify",
    )

    # Pairs rather than a mapping, so that options can be hashed, compared and pickled.
    plugin_values: tuple[tuple[str, Any], ...] = ()
    """Values of plugins' options by full name; read them as ``options["plugin.option"]``."""
    plugin_changed: tuple[str, ...] = ()
    """The names of plugins' options that are not at their defaults."""

    def __getitem__(self, name: str) -> Any:
        """An option by the name that a user writes: "cpp.march", "autotune.seconds". Errors: KeyError."""
        if name in _TABLE:
            return getattr(self, _TABLE[name].attribute)
        values = dict(self.plugin_values)
        if name in values:
            return values[name]
        near = nearest(name, [*_TABLE, *values])
        raise KeyError(f"there is no option {name!r}" + (f"; did you mean {near!r}?" if near else ""))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns ``self[name]``, or ``default`` when there is no such option (its plugin is not loaded, say)."""
        try:
            return self[name]
        except KeyError:
            return default

    def changed(self) -> Iterator[tuple[OptionRow, Any]]:
        """Returns core's options that are not at their defaults, paths as text."""
        for row in _TABLE.values():
            value = getattr(self, row.attribute)
            if value != row.value_unset:
                yield row, str(value) if isinstance(value, Path) else value

    def replace(self, **changes: Any) -> Options:
        """Returns a copy with some fields changed. The values are not checked: for litz's own use and tests."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class OptionRow:
    """One row of the table of options.

    name: as a user writes it. optional: None is allowed. default: a value, or a function that gives it. variables: of
    the environment that set it, where it is not LITZ_ and the name; the first that is set counts. least: smallest
    number allowed. affects_code: kernels may differ by it. item: what a tuple is of. unit: of an amount of memory, the
    bytes that 1 stands for; else 0. check: takes a value of the right type, and raises ValueError or OSError where the
    option cannot read it. accepts: what `check` accepts, in words, with an example. functions: as in `OptionSpec`.
    """

    name: str
    type: type[Any]
    optional: bool
    default: Any
    help: str
    variables: tuple[str, ...] = ()
    choices: tuple[Any, ...] | None = None
    least: int | None = None
    affects_code: bool = True
    item: Any = str
    unit: int = 0
    check: Callable[[Any], object] | None = None
    accepts: str = ""
    functions: bool = False

    @property
    def attribute(self) -> str:
        """Returns the name of the field of `Options`, for an option of core's."""
        return self.name.replace(".", "_")

    @property
    def env(self) -> tuple[str, ...]:
        """Returns the variables that set the option: "autotune.seconds" is LITZ_AUTOTUNE_SECONDS."""
        return self.variables or (strict.variable(self.name),)

    @property
    def value_unset(self) -> Any:
        """Returns the value that the option has where nothing sets it."""
        return self.default() if callable(self.default) else self.default

    @property
    def accepted(self) -> str:
        """Returns what a value may be, for messages and tables: "one of error, eager", "a whole number, 1 or more"."""
        if self.choices is not None:
            text = "a list of some of " if self.type is tuple else "one of "
            text += ", ".join(str(c) for c in self.choices)
        else:
            name = self.accepts or _TYPE_NAMES[tuple[int, ...] if self.item is int else self.type]
            text = name + (f", {self.least} or more" if self.least is not None else "")
            text += ", or a size as 8GiB" if self.unit else ""
        return text + (" or None" if self.optional else "")


_TYPE_NAMES: Mapping[Any, str] = {
    bool: "True or False (1, 0, yes, no, on, off in the environment)",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Secret: "a string, which is shown without its password",
    Path: "a path",
    tuple: "a list of strings (or one, with commas)",
    tuple[int, ...]: "a list of whole numbers (or a string of them, with commas)",
}


def _rows() -> Iterator[OptionRow]:
    hints = typing.get_type_hints(Options)
    for field in dataclasses.fields(Options):
        if field.metadata:
            yield OptionRow(**{"name": field.name, **_read_type(hints[field.name]), **field.metadata})


def _read_type(hint: Any) -> dict[str, Any]:
    """Returns the parts of a field's annotation: a class, X | None, a Literal, or tuple[X, ...]."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": type(args[0]), "optional": False, "choices": args}
    if origin in (types.UnionType, typing.Union):
        (inner,) = [arg for arg in args if arg is not type(None)]
        return {"type": inner, "optional": True}
    if origin is tuple:
        return {"type": tuple, "optional": False, "item": args[0]}
    return {"type": hint, "optional": False}


_TABLE: Mapping[str, OptionRow] = {row.name: row for row in _rows()}


def core_options() -> tuple[OptionRow, ...]:
    """Returns the table of core's options, for `litz options` and the docs."""
    return tuple(_TABLE.values())


def plugin_option_rows(specs: Iterable[OptionSpec]) -> tuple[OptionRow, ...]:
    """Returns the table of plugins' options. specs: with full names, as `Plugins.option_specs` returns them."""
    same = ("name", "type", "default", "help", "choices", "unit", "check", "accepts", "functions")
    return tuple(
        OptionRow(optional=spec.default is None, **{name: getattr(spec, name) for name in same}) for spec in specs
    )


# ------------------------------------------------------------------------------------------------------ reading values


def visible_cuda_devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns CUDA_VISIBLE_DEVICES, which a process hands on to others that see only some devices; None where it is not
    set."""
    return environ.get("CUDA_VISIBLE_DEVICES")


def distributed_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Returns the process's rank in a job that torchrun or another launcher started; None outside of a job."""
    rank = environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables by which launchers (torchrun, Open MPI, Intel MPI) tell a process how many of a job are on its machine."""


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Returns how many processes of a distributed job share this machine: 1 outside of one, and where its launcher does
    not say."""
    counts = [int(environ[name]) for name in LOCAL_RANKS if environ.get(name, "").isdecimal()]
    return max(counts[0] if counts else 1, 1)


def without_gpus(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns a copy of the environment for a process that must see no GPU."""
    return {**environ, "CUDA_VISIBLE_DEVICES": ""}


def hide_gpus() -> None:
    """Hides all GPUs from this process, which must not have used CUDA yet, and from processes that it starts."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


@dataclass(frozen=True)
class PluginSettings:
    """The options that must be known before plugins are loaded, and so before the other options can be read."""

    disable: tuple[str, ...]
    on_error: Literal["raise", "disable"]
    seconds: float = SECONDS


def make_plugin_settings(
    user_options: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> PluginSettings:
    """Returns the options that say which plugins to load. Errors: InvalidOptionError."""
    given = user_options or {}
    disable = _value_of(_TABLE["disable_plugins"], given, environ, {})
    on_error = _value_of(_TABLE["on_plugin_error"], given, environ, {})
    return PluginSettings(disable, on_error, _value_of(_TABLE["plugin_seconds"], given, environ, {}))


def make_options(
    mode: str | None = None,
    user_options: Mapping[str, Any] | None = None,
    plugin_specs: Iterable[OptionSpec] = (),
    environ: Mapping[str, str] = os.environ,
    missing: Mapping[str, str] = MappingProxyType({}),
) -> Options:
    """Returns the options of one compile.

    mode, user_options: torch.compile's ``mode=`` and ``options=``. plugin_specs: of the loaded plugins, with full names
    (`Plugins.option_specs()`). environ: LITZ_DEBUG and the like. missing: plugins that are installed and have no
    options all the same, with what to do about it (`Plugins.missing()`).

    Errors: UnknownOptionError with the nearest name; InvalidOptionError saying what is accepted.
    """
    given = ({} if mode is None else {"mode": mode}) | dict(user_options or {})
    mode_row = _TABLE["mode"]
    chosen = _value_of(mode_row, given, environ, {}, source="mode=" if mode is not None else "options=")
    specs = tuple(plugin_specs)
    rows = {row.name: row for row in plugin_option_rows(specs)}
    _check_names(given, [*_TABLE, *rows], missing)
    _warn_of_near_misses(environ, [*_TABLE.values(), *rows.values()])

    plugin_values = {row.name: _value_of(row, given, environ, {}) for row in rows.values()}
    implied = (spec.implies.get(plugin_values[spec.name], {}) for spec in specs)
    presets = {name: value for each in (MODES[chosen], *implied) for name, value in each.items()}
    values = {row.attribute: _value_of(row, given, environ, presets) for row in _TABLE.values() if row is not mode_row}
    return Options(
        mode=chosen,
        **values,
        plugin_values=tuple(plugin_values.items()),
        plugin_changed=tuple(row.name for row in rows.values() if plugin_values[row.name] != row.default),
    )


def _check_names(given: Iterable[str], known: list[str], missing: Mapping[str, str]) -> None:
    for name in given:
        if name in known:
            continue
        plugin = _missing_plugin(str(name), known, missing)
        todo = missing.get(plugin) or how_to_install(plugin)
        prefix = str(name).partition(".")[0]  # a plugin's own hint comes before one for a family of TorchInductor's
        own = prefix in missing or any(each.startswith(f"{prefix}.") for each in known if each not in _TABLE)
        instead = "" if own else in_litz(str(name))
        raise UnknownOptionError(str(name), known, missing_plugin=plugin, install=todo, instead=instead)


def _missing_plugin(name: str, known: Iterable[str], missing: Iterable[str]) -> str:
    """The plugin that an unknown option belongs to, '' where it is core's or a loaded plugin's, misspelt."""
    prefix, dot, _ = name.partition(".")
    namespaces = {each.partition(".")[0] for each in known if "." in each}
    if not dot or (prefix not in {*OWN_DISTS, *missing} and nearest(prefix, namespaces)) or prefix in namespaces:
        return ""
    return nearest(prefix, {*OWN_DISTS, *missing}) or prefix


def _warn_of_near_misses(environ: Mapping[str, str], rows: Iterable[OptionRow]) -> None:
    # LITZ_CACHEDIR would silently do nothing. Other LITZ_ variables may belong to a plugin that is not loaded.
    known = {variable for row in rows for variable in row.env}
    for variable in environ:
        if variable.startswith("LITZ_") and variable not in known:
            near = nearest(variable, known)
            if near and _distance(variable, near) <= 2:
                warnings.warn(f"litz does not read {variable}; did you mean {near}?", stacklevel=3)


def _distance(a: str, b: str) -> int:
    """Returns the number of letters to insert, delete or replace to turn a into b (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (x != y)))
    return row[-1]


def _value_of(
    row: OptionRow,
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    presets: Mapping[str, Any],
    source: str = "options=",
) -> Any:
    """Returns the value of one option by precedence, checked."""
    if row.name in given:
        return _checked(row, given[row.name], source)
    for variable in row.env:
        if environ.get(variable, "") != "":  # FOO= is how a shell unsets for one command
            return _checked(row, _parse(row, environ[variable], variable), f"the environment variable {variable}")
    if row.name in presets:
        return presets[row.name]
    return row.value_unset


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _parse(row: OptionRow, text: str, variable: str) -> Any:
    """Returns a variable's text as the option's type."""
    if row.optional and text.lower() == "none":
        return None
    try:
        if row.type is bool:
            return _WORDS[text.strip().lower()]
        if row.type in (int, float) and not row.unit:
            return row.type(text)
    except (KeyError, ValueError):
        raise InvalidOptionError(row.name, text, row.accepted, source=f"the environment variable {variable}") from None
    return text


def _checked(row: OptionRow, value: Any, source: str) -> Any:
    """Returns the value in the option's own type. Errors: InvalidOptionError."""
    given = Secret(str(value)) if row.type is Secret else value
    if value is None and row.optional:
        return None
    if row.functions:
        value = with_functions(value, row.type is tuple)
    if row.type is Path and isinstance(value, (str, os.PathLike)):
        value = _read(row, _as_path, value, given, source)
    elif row.type is tuple:
        value = _as_tuple(value, row.item)
    elif row.type is Secret and isinstance(value, str):
        value = given
    elif row.unit and isinstance(value, str):
        value = _in_units(value, row.unit)
    elif row.type is str and row.check is not None and type(value) is int:  # a size in bytes
        value = str(value)
    elif row.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    fits = isinstance(value, row.type) and not (row.type is int and isinstance(value, bool))
    parts = value if isinstance(value, tuple) else (value,)
    wrong = [part for part in parts if fits and row.choices is not None and part not in row.choices]
    if fits and not wrong and _is_enough(row, value):
        if row.check is not None:
            _read(row, row.check, value, given, source)
        return value
    near = "".join(nearest(part, map(str, row.choices or ())) for part in wrong[:1] if isinstance(part, str))
    raise InvalidOptionError(row.name, given, row.accepted, source=source, suggestion=near)


def _read(row: OptionRow, read: Callable[[Any], T], value: Any, given: Any, source: str) -> T:
    """Returns what `read` makes of a value; InvalidOptionError where it cannot read the value."""
    try:
        return read(value)
    except (ValueError, OSError) as cause:
        why = "" if row.type is Secret else str(cause)  # which may have a part of the password
        raise InvalidOptionError(row.name, given, row.accepted, source=source, why=why) from None


def _as_path(value: str | os.PathLike[str]) -> Path:
    """A path, its ~ replaced. ValueError where that is nobody's, or the path has a NUL byte, as no file's has."""
    try:
        path = Path(value).expanduser()
    except RuntimeError as cause:  # ~ of a user who is not there
        raise ValueError(f"{str(value)!r} begins with ~, which is no user's of this machine") from cause
    if "\0" in str(path):
        raise ValueError("a path has no NUL character")
    return path


def _in_units(text: str, unit: int) -> int | None:
    """A whole number as it is; a size such as "8GiB" in units of so many bytes, rounded up. None for anything else."""
    if text.strip().isdecimal():
        return int(text)
    try:
        return -(-parse_size(text) // unit)
    except ValueError:
        return None


def _is_enough(row: OptionRow, value: Any) -> bool:
    numbers = value if isinstance(value, tuple) else (value,)
    return row.least is None or all(number >= row.least for number in numbers)


def _as_tuple(value: Any, item: type[Any]) -> Any:
    """Returns "a, b", any collection or a single number as a tuple; None for a collection that holds anything but
    `item`s."""
    if isinstance(value, str):
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        if item is str:
            return parts
        return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None
    if item is int and isinstance(value, int):
        value = (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        return None
    fits = all(isinstance(each, item) and not isinstance(each, bool) for each in value)
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value) if fits else None
