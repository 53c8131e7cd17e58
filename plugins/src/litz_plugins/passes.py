"""The order of passes: in, the passes of one stage as plugins registered them; out, the same, sorted.

Sorting is stable: what ``after`` and ``before`` leave open stays in registration order, so that adding an unrelated
plugin moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from litz_plugins.errors import PassOrderError
from litz_plugins.order import OPTIONAL, Circular, in_order
from litz_plugins.records import STAGES, Pass


def sort_passes(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Returns all passes in the order they run: by stage (`STAGES`), then topologically within each.

    Names in ``after`` and ``before`` that belong to no pass are passed over here; whether they may be absent is
    `litz_plugins.strict`'s to say, which marks such a name by a "?" at its end. Errors:
    PassOrderError for two passes of one name, for an ``after`` or ``before`` against the order of stages, and for a
    cycle, naming the passes in it and their plugins.
    """
    passes = [_plain(item) for item in passes]
    _check_names(passes)
    _check_stages(passes)
    ordered: list[Pass] = []
    for stage in STAGES:
        ordered += _sort_stage([p for p in passes if p.stage == stage])
    return tuple(ordered)


def _plain(item: Pass) -> Pass:
    after, before = (tuple(name.removesuffix(OPTIONAL) for name in names) for names in (item.after, item.before))
    return item if (after, before) == (item.after, item.before) else replace(item, after=after, before=before)


def _check_names(passes: Iterable[Pass]) -> None:
    seen: dict[str, Pass] = {}
    for pass_ in passes:
        other = seen.setdefault(pass_.name, pass_)
        if other is not pass_:
            raise PassOrderError(
                f"two passes have the name {pass_.name!r}: from {_owner(other)} and from {_owner(pass_)}",
                [pass_.name],
                [other.plugin, pass_.plugin],
            )


def _check_stages(passes: Sequence[Pass]) -> None:
    by_name = {p.name: p for p in passes}
    for pass_ in passes:
        for first, second, word, named in [
            *((by_name[n], pass_, "after", n) for n in pass_.after if n in by_name),
            *((pass_, by_name[n], "before", n) for n in pass_.before if n in by_name),
        ]:
            if STAGES.index(first.stage) > STAGES.index(second.stage):
                raise PassOrderError(
                    f"pass {pass_.name!r} ({pass_.stage} stage, {_owner(pass_)}) cannot run {word} {named!r} "
                    f"({by_name[named].stage} stage): stages run in the order {', '.join(STAGES)}",
                    [pass_.name, named],
                    [pass_.plugin, by_name[named].plugin],
                )


def _sort_stage(passes: Sequence[Pass]) -> list[Pass]:
    try:
        return [passes[i] for i in in_order(passes)]
    except Circular as circular:
        cycle = [passes[i] for i in circular.places]
    arrows = " -> ".join(f"{p.name} ({_owner(p)})" for p in [*cycle, cycle[0]])
    raise PassOrderError(
        f"passes of the {passes[0].stage} stage wait for each other: {arrows}",
        [p.name for p in cycle],
        [p.plugin for p in cycle],
    )


def _owner(pass_: Pass) -> str:
    return f"plugin {pass_.plugin!r}" if pass_.plugin else "core"
