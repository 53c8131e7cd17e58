"""Functions of plugins that compiled graphs call: what a choice, a pass or a lowering put in as a library call.

In: a function. Out: a `PluginCall`: what goes wrong in the call names the plugin, the wrapper holds its results against
what was planned (`wrapper_support.given`), and files name the function with the plugin's version and a digest of its
source (`litz.runtime.stored`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from litz_plugins.errors import PluginHookError
from litz_plugins.raised import package_of

_TRUSTED = frozenset({"_operator", "builtins", "litz", "math", "operator", "torch"})
"""Packages whose functions are not a plugin's, whoever puts in a call of them."""


@dataclass(frozen=True)
class Owner:
    """A plugin, as files and messages name it. dist, version: '' for a plugin that was passed in."""

    plugin: str
    dist: str = ""
    version: str = ""

    @property
    def origin(self) -> str:
        """Returns the plugin's dist and version, or "passed in by the caller"."""
        return f"{self.dist} {self.version}".strip() or "passed in by the caller"


@dataclass(frozen=True)
class PluginCall:
    """A function of a plugin's, called as the function itself. Errors: PluginHookError, for all that it raises, and
    where it changes an argument in place.

    writes: positions and names of the arguments that the operation declares as written (`Extern.mutates`).
    """

    owner: Owner
    function: Callable[..., Any]
    writes: tuple[int | str, ...] = ()
    _plain: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Empty until a call has ended well: until then arguments are kept, to put them back. Then: are all the tensors
    arguments of their own, in no list, to be read only?"""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function. Errors: PluginHookError, which names the plugin, for whatever the function raises, and
        for a change in place that the operation does not declare. What the first call changed is put back."""
        if kwargs or not (self._plain and self._plain[0]):
            return self._looked_at(args, kwargs)
        try:  # the usual case, in a microsecond
            versions = [item._version for item in args if isinstance(item, torch.Tensor)]
        except RuntimeError:  # torch counts no writes of a tensor that was made under `torch.inference_mode`
            return self._looked_at(args, kwargs)
        try:
            result = self.function(*args)
        except (Exception, SystemExit) as cause:
            self._blame(cause, versions == [item._version for item in args if isinstance(item, torch.Tensor)])
            raise
        if versions != [item._version for item in args if isinstance(item, torch.Tensor)]:
            raise self.failure("it changed an argument in place" + _UNDECLARED, whole=False)
        return result

    def _looked_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call, and those of lists, of names and of arguments that may be written."""
        given = _Given(args, kwargs, self.writes, copies=not self._plain)
        try:
            result = self.function(*args, **kwargs)
        except (Exception, SystemExit) as cause:
            self._blame(cause, given.put_back())
            raise
        changed = given.changed()
        if changed:
            raise self.failure(f"it changed its argument {changed} in place{_UNDECLARED}", given.put_back())
        if not self._plain:
            self._plain.append(not (kwargs or self.writes or any(map(_is_nested, args))))
        return result

    def _blame(self, cause: BaseException, whole: bool) -> None:
        """Raises the error for what the function raised; returns for another plugin's, which is to be raised as it
        is."""
        if not isinstance(cause, PluginHookError):
            raise self.failure(cause, whole) from cause
        cause.inputs_whole = cause.inputs_whole and whole

    def failure(self, cause: BaseException | str, whole: bool = True) -> PluginHookError:
        """Returns the error for a call that went wrong. whole: the arguments are unchanged, so all may begin anew."""
        known: dict[str, Any] = {"dist": self.owner.origin, "package": package_of(self.function)}
        what = f"the call of {self.__name__}"
        return PluginHookError(self.owner.plugin, what, cause, inputs_whole=whole, **known)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.function, name)


_UNDECLARED = ", which the operation does not name in `mutates`"


class _Given:
    """The tensors that a call is given to read, and their versions. copies: with their values, to put them back.

    torch counts each write to a tensor, except to one made under `torch.inference_mode`.
    """

    __slots__ = ("_copies", "_read", "_versions")

    def __init__(self, args: Any, kwargs: Any, writes: tuple[int | str, ...], copies: bool) -> None:
        places = enumerate(args) if not kwargs else (*enumerate(args), *kwargs.items())
        self._read = [
            (place, tensor)
            for place, value in places
            if place not in writes
            for tensor in ((value,) if isinstance(value, torch.Tensor) else _leaves(value))
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
        ]
        self._versions = [tensor._version for _, tensor in self._read]
        self._copies = [tensor.detach().clone() for _, tensor in self._read] if copies else None

    def changed(self) -> int | str | None:
        """Returns the name or number, from 1, of an argument that was written; None if there is none."""
        for (place, tensor), version in zip(self._read, self._versions, strict=True):
            if tensor._version != version:
                return place + 1 if isinstance(place, int) else place
        return None

    def put_back(self) -> bool:
        """Gives the arguments that were written their values back. Returns whether all are as they were."""
        if self._copies is None:
            return self.changed() is None
        with torch.no_grad():
            for (_, tensor), version, copy in zip(self._read, self._versions, self._copies, strict=True):
                if tensor._version != version:
                    tensor.copy_(copy)
        return True


def _leaves(value: Any) -> Iterable[Any]:
    """Returns the parts of a list, tuple or dict; nothing of a number, which is what most arguments are."""
    return tree_leaves(value) if _is_nested(value) else ()


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict))


def is_foreign(target: Any) -> bool:
    """Returns whether what an operation calls is a function of neither torch nor litz."""
    kinds = {cls.__name__ for cls in type(target).__mro__}
    if kinds & {"OpOverload", "HigherOrderOperator", "PluginCall"}:
        return False
    module = getattr(target, "__module__", None) or type(target).__module__
    if module == "builtins" and isinstance(target, FunctionType):  # made by `eval` or `exec`
        return True
    return str(module).partition(".")[0] not in _TRUSTED


def source_digest(function: Any) -> str:
    """Returns 32 hex digits of the SHA-256 of the file that defines a function; '' where there is none."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:32] if file else ""
    except OSError:
        return ""
