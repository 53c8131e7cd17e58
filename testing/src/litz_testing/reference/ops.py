"""The page of the IR's ops. In: the tables of `litz.ir`. Out: Markdown, with types found by asking the type rules."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import torch

from litz.ir import node, ops, reductions
from litz.ir.dtypes import STORAGE, Storage, short
from litz.ir.ops import OPS, Op
from litz.ir.reductions import REDUCTIONS, ROWS, SCANS

from .markdown import code, doc_of, page, table

SAMPLES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}
"""A type for each sort of numbers; the rules tell no more of them apart."""


def ops_page() -> str:
    """Returns the page of the tables of scalar ops, nodes, reductions and types."""
    lines = ["What a body of a Loop is made of. `litz.ir.build` makes the nodes and applies the type rules.", ""]
    lines += ["## Scalar ops", "", '`build.call("add", a, b)`. "float" is any of f16, bf16, f32 and f64, "int" any']
    lines += ["integer; arguments of one op have one type, and casts are explicit (`build.cast`).", ""]
    rows = ((code(name), _types(op), _meaning(op), str(op.flops)) for name, op in OPS.items())
    lines += table(("op", "types", "means", "FLOPs"), rows)
    lines += ["## Nodes with attributes", "", doc_of(node).partition("Ops with a meaning")[2].partition("\n\n")[2], ""]
    lines += ["## Reductions", "", doc_of(reductions).partition("\n\n")[2], ""]
    own = '`build.reduce("sum", value, over=ranges)`, over ranges of its own'
    lines += [
        f'`build.reduce("sum", value)`, over all reduction ranges of the loop; {own};',
        '`build.scan("sum", value)`.',
    ]
    lines += [""]
    kinds = [kind for row in ROWS for kind in row.results]
    described = ((code(kind), _reduced(kind), _values(kind), "yes" if kind in SCANS else "") for kind in kinds)
    lines += table(("kind", "types", "values", "scan"), described)
    lines += ["## Types", "", "What a Loop loads and stores. Anything else goes through an Extern.", ""]
    lines += table(("name", "torch", "computed in", "used for"), map(_type_row, STORAGE.values()))
    return page("The ops of the IR", *lines)


def _type_row(row: Storage) -> tuple[str, ...]:
    use = "moved and converted" if row.only_stored else "all"
    return code(row.name), code(str(row.dtype)), code(short(row.computed)), use


def _types(op: Op) -> str:
    """Returns "float, float -> bool" for each sort that the rule takes."""
    found = []
    for dtype in SAMPLES.values():
        for given in _candidates(op, dtype):
            try:
                result = op.rule(given)
            except TypeError:
                continue
            found.append(f"{', '.join(map(_sort, given))} -> {_sort(result)}")
            break
    return "<br>".join(code(text) for text in dict.fromkeys(found))


def _candidates(op: Op, dtype: torch.dtype) -> Iterator[tuple[torch.dtype, ...]]:
    yield (dtype,) * op.arity
    yield (torch.bool, *(dtype,) * (op.arity - 1))


def _sort(dtype: torch.dtype) -> str:
    """The sort of a type; the type itself where it is another than that of its sort's sample."""
    sort = next((name for name, sample in SAMPLES.items() if sample == dtype), None)
    return sort or short(dtype)


def _meaning(op: Op) -> str:
    name = getattr(op.torch, "__name__", "")
    if name == "<lambda>":
        return code(_lambdas()[op.name])
    module = (getattr(op.torch, "__module__", None) or "torch").replace("torch._C._VariableFunctions", "torch")
    return code(f"{'torch' if module.startswith('torch') else module}.{name}")


def _lambdas() -> dict[str, str]:
    """The text of the meanings that are written as functions in the table, by op."""
    calls = (each for each in ast.walk(ast.parse(inspect.getsource(ops))) if isinstance(each, ast.Call))
    rows = (each.args for each in calls if isinstance(each.func, ast.Name) and each.func.id == "Op")
    named = (row for row in rows if isinstance(row[0], ast.Constant) and isinstance(row[3], ast.Lambda))
    return {str(row[0].value): ast.unparse(row[3].body) for row in named}  # type: ignore[attr-defined]


def _reduced(kind: str) -> str:
    found = []
    for name, dtype in SAMPLES.items():
        if REDUCTIONS[kind].means(dtype):
            found.append(f"{name} -> {_sort(REDUCTIONS[kind].dtype(kind, dtype))}")
    return "<br>".join(map(code, found))


def _values(kind: str) -> str:
    row = REDUCTIONS[kind]
    return f"{row.arity}{', in their order' if row.ordered else ''}"
