"""The guards of a graph: when the graph may be used again. In: what dynamo traced, while it compiles. Out: texts.

Dynamo keeps them with the trace, which is private to torch: what this version does not say is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._guards import TracingContext

from litz.report import CompileReport

ALWAYS = "the state of torch"
"""What guards without a name are about: grad mode, determinism, the default device and so on."""


def guards_of(report: CompileReport) -> list[list[str]]:
    """Returns what each guard is about and what has to hold there, such as ["L['x']", "TENSOR_MATCH"], and then the
    conditions on sizes; [] where no trace is going on."""
    context = TracingContext.try_get()
    found: dict[str, list[str]] = {}
    if context is not None:
        for guard in getattr(getattr(context, "guards_context", None), "dynamo_guards", ()):
            name = str(getattr(guard, "name", "")) or ALWAYS
            kinds = found.setdefault(name, [])
            kind = str(guard.create_fn_name())
            if kind not in kinds:
                kinds.append(kind)
    # What a reader may change comes first: arguments and what they hold, then globals, then torch's own state.
    order = sorted(found, key=lambda name: (not name.startswith("L["), not name.startswith("G["), name))
    rows = [[name, ", ".join(sorted(found[name]))] for name in order]
    return rows + [["sizes", text] for text in _sizes(context, report)]


def _sizes(context: Any, report: CompileReport) -> Sequence[str]:
    """The conditions on sizes that torch and then litz have decided, each with what its symbols are."""
    env = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    traced = [guard.expr for guard in getattr(env, "guards", ())]
    sources = getattr(env, "var_to_sources", {})
    texts = []
    for expr in traced:
        symbols = sorted(expr.free_symbols, key=str)
        names = ", ".join(f"{symbol} = {sources[symbol][0].name}" for symbol in symbols if sources.get(symbol))
        texts.append(f"{expr} where {names}" if names else str(expr))
    own = report.code.guards if report.code is not None else ()
    return list(dict.fromkeys([*texts, *own]))
