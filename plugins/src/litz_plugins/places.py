"""The order in which the plugins that have a hook are asked: in, pluggy's functions of the hook; out, the same in
order, or who asks for a place that cannot be.

pluggy's order has plugins passed in first, then by name, then core's own, and obeys `tryfirst` and `trylast`. Within
that, plugins name others that are asked `after` or `before` them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from litz_plugins.order import OPTIONAL, Circular, in_order

SIDES = ("after", "before")


@dataclass(frozen=True)
class _Place:
    """The place that a plugin asks for. name: the plugin's."""

    name: str
    after: tuple[str, ...]
    before: tuple[str, ...]


def asked(impls: Sequence[Any]) -> Sequence[Any]:
    """Returns the functions of a hook in calling order. impls: pluggy's `HookImpl`s, in pluggy's calling order. Raises
    Circular."""
    if not any(map(_named, impls)):
        return impls
    sides = [[[name.removesuffix(OPTIONAL) for name in impl.opts.get(side, ())] for side in SIDES] for impl in impls]
    places = [_Place(impl.plugin_name, *map(tuple, each)) for impl, each in zip(impls, sides, strict=True)]
    return [impls[place] for place in in_order(places)]


def misplaced(impls: Sequence[Any], known: Collection[str]) -> tuple[str, str] | None:
    """Returns a plugin that asks for a place that cannot be, and what is wrong; None where all can be. known: the names
    of all plugins."""
    for impl in impls:
        for given in _named(impl):
            if not given.endswith(OPTIONAL) and given not in known:
                problem = f"names {given!r} in `after` or `before`, which is no plugin; if it may be absent, write"
                return impl.plugin_name, f"{problem} {given + OPTIONAL!r}"
    try:
        asked(impls)
    except Circular as circular:
        names = [impls[place].plugin_name for place in circular.places]
        arrows = " -> ".join([*names, names[0]])
        return impls[max(circular.places)].plugin_name, f"waits for itself in the order of plugins: {arrows}"
    return None


def _named(impl: Any) -> tuple[str, ...]:
    return tuple(name for side in SIDES for name in impl.opts.get(side, ()))


__all__ = ["asked", "misplaced"]
