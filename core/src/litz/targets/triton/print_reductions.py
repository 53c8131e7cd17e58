"""Prints the lines of TilePrograms that reduce and scan, as Triton. In the rows below, `{a}` is the accumulator (or
left value), `{v}` the new value, `{T}` the type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from litz.codegen.dialect import family
from litz.ir import Node
from litz.ir.combined import scan_row
from litz.ir.dtypes import short
from litz.ir.node import walk
from litz.ir.reductions import REDUCTIONS, Form
from litz.tiles.program import Join, Moments, Reduce, Scan

from .dialect import TRITON, VALUES, literal, op_text, typed

if TYPE_CHECKING:
    from .print import Printer


@dataclass(frozen=True)
class Row:
    """A reduction with one accumulator: the combination, the reduction of a tile along its `{axis}`, the scan."""

    combine: str
    across: str
    scan: str = ""


def _by_function(function: str, combine: str = "") -> Row:
    across = f"tl.reduce({{v}}, {{axis}}, {function}, keep_dims=True)"
    return Row(combine or f"{function}({{a}}, {{v}})", across, f"tl.associative_scan({{v}}, 1, {function})")


def _row(kind: str, dtype: torch.dtype) -> Row:
    row = family(kind, dtype)
    if row == "any":
        return Row("{a} | {v}", "tl.max({v}.to(tl.int32), {axis}, keep_dims=True) != 0")
    if row == "all":
        return Row("{a} & {v}", "tl.min({v}.to(tl.int32), {axis}, keep_dims=True) != 0")
    narrow = ".to({T})" if not dtype.is_floating_point and dtype.itemsize < 4 else ""
    if kind == "sum":
        across, scan = f"tl.sum({{v}}, {{axis}}, keep_dims=True){narrow}", f"tl.cumsum({{v}}, 1){narrow}"
        return Row("{a} + {v}", across, scan)
    if kind == "prod":
        return _by_function("_multiply", "{a} * {v}")
    word = "maximum" if kind == "max" else "minimum"
    if dtype.is_floating_point:
        return _by_function(f"_{word}")
    across = f"tl.{kind}({{v}}, {{axis}}, keep_dims=True){narrow}"
    return Row(f"tl.{word}({{a}}, {{v}})", across, f"tl.associative_scan({{v}}, 1, _{word}_int)")


_MERGES: Mapping[str, str] = {
    "place": "_{kind}",
    "welford": "_welford_combine",
    "combined": "_welford_combine",
    "online": "_softmax_combine",
}
"""The helpers that merge two states, by the form of a reduction."""


def _merge(on: Printer, line: Join | Reduce | Scan, dtype: torch.dtype) -> str:
    """Returns the name of the function that merges two states, and adds the function to the kernel."""
    if line.form in _MERGES:
        return _MERGES[line.form].format(kind=line.kind)
    row = scan_row(line.kind) or REDUCTIONS[line.kind]
    name = f"litz_merge_{row.name}_{short(dtype)}"
    on.functions[name] = _merge_function(name, row.form(dtype))
    return name


def _merge_function(name: str, form: Form) -> str:
    parameters = [f"{side}{number}" for side in ("s", "o") for number in range(len(form.state))]
    texts: dict[Node, str] = dict(zip((*form.state, *form.other), parameters, strict=True))
    lines, names = list[str](), map("x{}".format, count())
    for node in walk(*form.merge):
        if node in texts:
            continue
        if node.op == "const":
            texts[node] = typed(node.attrs[0], node.dtype)
            continue
        args = [texts[arg] for arg in node.args]
        cast = node.op == "cast"
        text = TRITON.cast(args[0], node.args[0].dtype, node.dtype) if cast else op_text(node, args)
        texts[node] = next(names)
        lines.append(f"{texts[node]} = {text}")
    lines.append(f"return {', '.join(texts[root] for root in form.merge)}")
    body = "".join(f"    {line}\n" for line in lines)
    return f"@triton.jit\ndef {name}({', '.join(parameters)}):\n{body}\n"


def _join(on: Printer, line: Join) -> None:
    texts, state = list(map(on.text, line.args)), [value.text for value in line.state]
    names, together = ", ".join(state), line.groups
    if line.form == "plain":
        row, dtype = _row(line.kind, line.args[0].dtype), line.state[0].dtype
        (value,) = texts
        if together > 1:
            found = row.across.format(v=_grouped(on, value), T=VALUES[dtype], axis=2)
            value = f"tl.reshape({found}, {on.shape(line.state[0].axes)})"
        new = row.combine.format(a=names, v=value)
        on.emit(f"{names} = {f'tl.where(rmask, {new}, {names})' if line.masked else new}")
        return
    inside = "rmask"
    if line.form == "welford":
        if together > 1:
            inside = f"(roffset + {on.first_of_group()} < {on.length})"
            call = f"_welford_group({names}, {_grouped(on, texts[0])}, {together}, roffset // RBLOCK)"
        else:
            call = f"_welford_step({names}, {texts[0]}, roffset // RBLOCK + 1)"
    elif line.form == "online":
        groups = f"_softmax_group({names}, {_grouped(on, texts[0])}, {line.half})" if together > 1 else ""
        call = groups or f"_softmax_step({names}, {texts[0]})"
    else:
        call = f"{_merge(on, line, line.args[0].dtype)}({', '.join([names, *texts])})"
    on.emit(f"{', '.join(line.fresh) or names} = {call}")
    # Lanes beyond the end of the row stay as they were.
    on.emit(*(f"{n} = tl.where({inside}, {new}, {n})" for n, new in zip(state, line.fresh, strict=False)))


def _grouped(on: Printer, text: str) -> str:
    together = on.tiling.together
    return f"tl.reshape({text}, [XBLOCK, RBLOCK // {together}, {together}])"


def _reduce(on: Printer, line: Reduce) -> None:
    texts, dtype = list(map(on.text, line.args)), line.args[0].dtype
    names = ", ".join(value.text for value in line.values)
    if line.form == "plain":
        on.emit(f"{names} = {_row(line.kind, dtype).across.format(v=texts[0], T=VALUES[dtype], axis=1)}")
        return
    inputs = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    on.emit(f"{names} = tl.reduce({inputs}, 1, {_merge(on, line, dtype)}, keep_dims=True)")


def _moments(on: Printer, line: Moments) -> None:
    value, mean, apart = on.text(line.arg), line.mean.text, line.apart.text
    total = f"tl.sum({_inside(value, line.masked)}, 1, keep_dims=True)"
    axis = on.tiling.axis("r")
    assert axis is not None
    on.emit(f"{mean} = {f'{total} * {literal(1 / int(axis.size))}' if line.near else f'_mean({total}, {on.length})'}")
    # Masked before it is squared: a square is added in one instruction then.
    on.emit(f"{apart} = {_inside(f'{value} - {mean}', line.masked)}")
    if line.m2 is not None:
        on.emit(f"{line.m2.text} = tl.sum({apart} * {apart}, 1, keep_dims=True)")


def _inside(text: str, masked: bool) -> str:
    return f"tl.where(rmask, {text}, 0.0)" if masked else text


def _scan(on: Printer, line: Scan) -> None:
    if line.form == "function":
        return _scan_by_function(on, line)
    (value,), (arg,) = line.values, line.args
    dtype = value.dtype if line.outside is None else line.outside.dtype
    row = _row(line.kind, dtype) if line.form == "plain" else _by_function(_merge(on, line, dtype))
    text, name, types = on.text(arg), value.text, VALUES[dtype]
    scanned = row.scan.format(v=text, T=types)
    if not line.carry:
        on.emit(f"{name} = {scanned}")
        return
    carry = line.carry[0].text
    on.emit(f"{name} = {row.combine.format(a=carry, v=f'({scanned})')}")
    filled = text if line.outside is None else on.filled(text, line.outside)
    total = row.across.format(v=filled, T=types, axis=1)
    on.emit(f"{carry} = {row.combine.format(a=carry, v=f'({total})')}")


def _scan_by_function(on: Printer, line: Scan) -> None:
    function, texts = _merge(on, line, line.args[0].dtype), list(map(on.text, line.args))
    names, carries = [value.text for value in line.values], [value.text for value in line.carry]
    given = f"({', '.join(texts)})" if len(texts) > 1 else texts[0]
    on.emit(f"{', '.join(names)} = tl.associative_scan({given}, 1, {function})")
    if not carries:
        return
    on.emit(f"{', '.join(line.fresh)} = {function}({', '.join([*carries, *names])})")
    # Not by tl.reduce, which merges lanes in any order. Adding -0.0 changes no number. What lies beyond the end of the
    # row is in the last block, which hands on nothing.
    for value, name, other, carry in zip(line.values, names, line.fresh, carries, strict=True):
        last = f"tl.where(rbase == RBLOCK - 1, {name}, {'-0.0' if value.dtype.is_floating_point else '0'})"
        on.emit(f"{name} = tl.where(roffset == 0, {name}, {other})", f"{carry} = tl.sum({last}, 1, keep_dims=True)")


REDUCTION_LINES: Mapping[type, Callable[[Any, Any], None]] = {
    Join: _join,
    Reduce: _reduce,
    Moments: _moments,
    Scan: _scan,
}
"""What prints each line, given the printer."""
