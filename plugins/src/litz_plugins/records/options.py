"""Options of plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from litz_plugins.records.secret import Secret

_NAME = re.compile(r"[a-z][a-z0-9_]*")


_OPTION_TYPES = (bool, int, float, str, Path, tuple, Secret)


@dataclass(frozen=True)
class OptionSpec:
    """One option of a plugin, set as ``options={"plugin.name": value}`` or LITZ_PLUGIN_NAME in the environment.

    name: lower-case identifier, without the plugin's name (the manager adds it). type: bool, int, float, str, Path,
    tuple (of strings), or Secret, for what may hold a password. default: of that type, or None for "not set". help: one
    sentence. choices: allowed values, of a tuple those of each string; None for any. unit: of an int that is an amount
    of memory, the bytes that 1 stands for (1 << 20 for MiB); such an option takes sizes like "8GiB" too. 0 for every
    other option. check: of an option whose text has a grammar (a size, an address, "module:function"), or names a file
    to read (`Path.stat`); called with each value that is given, of the option's type and not None, before anything is
    compiled; raises ValueError or OSError, which says what is wrong, for a value that the option cannot read; what it
    returns is ignored. Quick, and without imports of torch: `litz options` calls it too. accepts: what `check` accepts,
    with an example, for the error ("give it ..."). functions: may a value, or an item of a tuple, also be a function,
    of a str or tuple of paths like "module:function"? The plugin is handed a `Function`, a str with the function in
    it, and says what of the function belongs in the key by `litz_cache_fingerprint`. affects_code: may another value
    change what a graph becomes? If not, the option is in no key of the graph cache. implies: value -> options of
    core's that this value sets, by the names of core's table, where neither ``options=`` nor the environment does: as
    a mode sets some.
    """

    name: str
    type: type[Any]
    default: Any
    help: str
    choices: tuple[Any, ...] | None = None
    unit: int = 0
    check: Callable[[Any], object] | None = None
    accepts: str = ""
    functions: bool = False
    affects_code: bool = True
    implies: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not all(_NAME.fullmatch(part) for part in self.name.split(".")):
            raise ValueError(f"option {self.name!r}: a name is lower-case letters, digits and underscores")
        if self.type not in _OPTION_TYPES:
            raise ValueError(f"option {self.name!r}: type is one of bool, int, float, str, Path, tuple, Secret")
        if self.default is not None and not _is_of(self.default, self.type):
            raise ValueError(f"option {self.name!r}: the default {self.default!r} is no {self.type.__name__}")
        if self.choices is not None:
            object.__setattr__(self, "choices", tuple(self.choices))
            parts = self.default if self.type is tuple else (self.default,)
            if self.default is not None and not set(parts) <= set(self.choices):
                raise ValueError(f"option {self.name!r}: the default {self.default!r} is none of its choices")
        if self.choices is not None and not set(self.implies) <= set(self.choices):
            raise ValueError(f"option {self.name!r}: a value that implies something is none of its choices")
        if self.unit and self.type is not int:
            raise ValueError(f"option {self.name!r}: only an int counts units of memory")
        if self.functions and self.type not in (str, tuple):
            raise ValueError(f"option {self.name!r}: only a str or a tuple may have functions")
        if (self.check is None) != (not self.accepts):
            raise ValueError(f"option {self.name!r}: `check`, and in `accepts` what it accepts, belong together")
        if self.check is not None and self.default is not None:
            self.check(self.default)
        if not self.help:
            raise ValueError(f"option {self.name!r}: needs a help text")


def _is_of(value: object, type_: type[Any]) -> bool:
    """Returns whether the value is an instance of the type. True is no int, and an int is a float."""
    if type_ in (int, float) and isinstance(value, bool):
        return False
    if type_ is float:
        return isinstance(value, (int, float))
    return isinstance(value, type_)
