"""Names and keys that plugins register, held against those that there are: in, what a hook returned; out, the same, or
an error that names the nearest right word. What would otherwise be ignored without a word is found here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from litz_plugins.errors import nearest
from litz_plugins.order import OPTIONAL
from litz_plugins.records import OptionSpec, Pass, TemplateSpec, Uncacheable
from litz_plugins.words import CORE_COMMANDS, CORE_PASSES, LAYOUT_NEEDS, TEMPLATE_KINDS

T = TypeVar("T")


class WrongName(ValueError):
    """A plugin names something that is not there. ``suggestion``: the nearest that is, or ''."""

    def __init__(self, problem: str, name: str = "", known: Iterable[str] = (), todo: str = "") -> None:
        words = list(known)
        self.suggestion = nearest(name, words)
        said = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        listed = f"; there are {', '.join(words)}" if words and not said and len(words) <= 20 else ""
        super().__init__(f"{problem}{said}{listed}{'; ' if todo else ''}{todo}")


@functools.lru_cache(maxsize=512)  # each compile asks for the variable of each option
def variable(option: str) -> str:
    """Returns the environment variable of an option by its full name: LITZ_AUTOTUNE_SECONDS for "autotune.seconds"."""
    return "LITZ_" + "".join(c if c.isalnum() else "_" for c in option).upper()


# ---------------------------------------------------------------------------------------------------------- by the op


def check_op(key: Any) -> None:
    """Raises WrongName unless a key is an op as graphs call it: an overload, or a higher-order op."""
    if type(key).__name__ == "OpOverload":  # core's table has hundreds
        return
    kinds = {cls.__name__ for cls in type(key).__mro__}
    if kinds & {"OpOverload", "HigherOrderOperator"}:
        return
    if "OpOverloadPacket" in kinds:
        overloads = [f"{key}.{name}" for name in key.overloads()]
        raise WrongName(f"its key {key} is all overloads of an op, and graphs call one: use {' or '.join(overloads)}")
    shown = repr(key) if isinstance(key, str) else f"{key!r} ({type(key).__name__})"
    raise WrongName(f"its key {shown} is no op; use an overload, such as torch.ops.aten.relu.default")


def rules(result: Mapping[Any, Any], *, whole: bool = False) -> Mapping[Any, Any]:
    """Returns a mapping of ops to functions after a check. whole: None may stand for a function."""
    for op, rule in result.items():
        check_op(op)
        if not callable(rule) and not (whole and rule is None):
            raise TypeError(f"what it registers for {op} is {type(rule).__name__}, which cannot be called")
    return result


def layout_needs(result: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns, after a check, op -> a word for all its tensors, or op -> (name of an argument -> a word)."""
    for op, row in result.items():
        check_op(op)
        named, schema = isinstance(row, Mapping), getattr(op, "_schema", None)
        arguments = [argument.name for argument in schema.arguments] if named and schema is not None else None
        for name, word in row.items() if named else [("", row)]:
            if name and arguments is not None and name not in arguments:
                raise WrongName(f"{op} has no argument {name!r}", name, arguments)
            if word not in LAYOUT_NEEDS:
                raise WrongName(f"{word!r}, for {op}, is no way to take a tensor", str(word), LAYOUT_NEEDS)
    return result


def narrowed(result: Any, registered: Mapping[Any, Any], kind: str) -> Mapping[Any, Any]:
    """Returns, after a check, what a plugin leaves of what is registered: some of the same keys, each with what was
    registered, or of an op with another function."""
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}; a mapping, or None, is expected")
    for key, value in result.items():
        if key not in registered:
            raise WrongName(f"{key} is none of what it was handed", str(key), map(str, registered))
        if value is not registered[key] and (kind not in ("decomposition", "lowering") or not callable(value)):
            raise TypeError(f"what it returned for {key} is not what was registered")
    return result


# --------------------------------------------------------------------------------------------------------- by the name


def templates(specs: Sequence[TemplateSpec]) -> None:
    """Raises WrongName unless lowering makes contractions of each kind."""
    for spec in specs:
        for kind in spec.kinds:
            if kind not in (*TEMPLATE_KINDS, *spec.own_kinds):
                raise WrongName(
                    f"template {spec.name!r}: no contraction is of kind {kind!r}",
                    kind,
                    TEMPLATE_KINDS,
                    "a kind that a plugin's lowering makes is one of own_kinds, too",
                )


def pass_order(own: Sequence[Pass], others: Iterable[Pass] = ()) -> None:
    """Checks that each name in `after` and `before` of a plugin's passes is a pass of the same stage. others: the
    passes of all plugins; core's are known."""
    stages = {**CORE_PASSES, **{item.name: item.stage for item in (*others, *own)}}
    for item in own:
        for side in ("after", "before"):
            for given in getattr(item, side):
                name = given.removesuffix(OPTIONAL)
                if name not in stages:
                    if given.endswith(OPTIONAL):
                        continue
                    todo = f"if its plugin may be absent, write {given + OPTIONAL!r}"
                    raise WrongName(f"pass {item.name!r} has {side}={name!r}, which is no pass", name, stages, todo)
                if stages[name] != item.stage:
                    raise WrongName(
                        f"pass {item.name!r} ({item.stage} stage) has {side}={name!r}, a pass of the {stages[name]} "
                        "stage: all passes of a stage run before those of the next, and names order them within one"
                    )


def commands(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the commands. Raises WrongName for a name of core's, TypeError for what is no command."""
    for name, command in result.items():
        if name in CORE_COMMANDS:
            raise WrongName(f"the command {name!r} is core's, which no plugin replaces; choose another name")
        if not callable(getattr(command, "main", None)):
            raise TypeError(f"the command {name!r} is {type(command).__name__}; a click.Command is expected")
    return result


def options(specs: Iterable[OptionSpec], taken: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variable of each option -> the option. taken: those of core, with what each is of.
    WrongName where two options would share a variable."""
    found: dict[str, str] = {}
    for spec in specs:
        name = variable(spec.name)
        other = found.get(name) or taken.get(name)
        if other is not None:
            raise WrongName(f"the option {spec.name!r} is set by {name}, and so is {other}; choose another name")
        found[name] = f"the option {spec.name!r}"
    return found


def names_to_leave_out(names: Collection[str], known: Collection[str]) -> None:
    """Raises WrongName unless there is a plugin of each name."""
    for name in sorted(set(names) - set(known)):
        raise WrongName(f"there is no plugin {name!r} to leave out", name, sorted(known))


# ------------------------------------------------------------------------------------------------------- of what kind


def of_type(kind: type[T]) -> Callable[[Any], T]:
    """Returns a function that raises TypeError unless a result is of a class."""

    def check(result: Any) -> T:
        if not isinstance(result, kind):
            raise TypeError(f"returned {type(result).__name__}; {kind.__name__} or None is expected")
        return result

    return check


def sequence_of(kind: type[T]) -> Callable[[Any], tuple[T, ...]]:
    """Returns a function that gives a sequence of records of a class as a tuple, and raises TypeError for others."""

    def check(result: Any) -> tuple[T, ...]:
        items = (result,) if isinstance(result, (str, bytes, kind)) else tuple(result)
        for item in items:
            if not isinstance(item, kind) or item is result:
                raise TypeError(f"returned {type(item).__name__}; a list of {kind.__name__} is expected")
        return items

    return check


def mapping(result: Any) -> Mapping[Any, Any]:
    """Returns a mapping as it is. Raises TypeError for anything else."""
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}; a mapping is expected")
    return result


def anything(result: Any) -> Any:
    """Returns any result as it is."""
    return result


def fingerprint(result: Any) -> str | Uncacheable:
    """Returns what a plugin's results depend on, after a check."""
    if not isinstance(result, (str, Uncacheable)):
        raise TypeError(f"returned {type(result).__name__}; a text, Uncacheable or None is expected")
    return result


def of_mapping(check: Callable[[Mapping[Any, Any]], Mapping[Any, Any]]) -> Callable[[Any], Mapping[Any, Any]]:
    """Returns a check of a mapping and of what is in it."""
    return lambda result: check(mapping(result))
