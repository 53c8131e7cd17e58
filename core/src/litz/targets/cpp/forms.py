"""How C++ reduces and scans: forms made by hand for rows that gain from them, and the form of any other row.

In: a row of `litz.ir.reductions` and the type of its values. Out: a `Form`, templates of statements. In them {0}, {1},
... are the variables of the state, {n0}, ... their names without a lane, {v0}, ... the values that enter, {p0}, ... the
state that is merged in, and {at} is the position of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from litz.codegen.dialect import family
from litz.ir.build import call, const
from litz.ir.combined import scan_row
from litz.ir.node import Node, walk
from litz.ir.reductions import REDUCTIONS, Reduction
from litz.tiles.program import Held

from .dialect import CPP, VALUES, literal, op_text
from .prelude import EXTREMES, SIGNS


@dataclass(frozen=True)
class State:
    """A variable: its name (of a form, the stem of one), type and first value. clause: what `omp simd reduction(...)`
    calls the way that two of them merge. shared: the same for every lane, so never an array."""

    name: str
    type: str
    start: str
    clause: str = ""
    shared: bool = False


@dataclass(frozen=True)
class Form:
    """A way to reduce, by its steps (`Fold`): what to do `before` the lanes `join` a value; `joint`, `merge` and
    `total` take in another state, before the lanes, in them and after; `finish` once all is in. results: by kind, "{0}"
    where none is named. block: takes in `{count}` values of an array, `{buffer}`, the first of which is at `{start}`;
    where there is one, rows go through it. sequential: in a row, steps depend on each other as lanes cannot. widens:
    may the state be double where a walk has no partial states, which keep errors small, and where such states are
    merged? part: how lanes hold a few values, to be merged in; None if this form does. `lost` sets {p0} where the state
    has lost what its type cannot hold. widened: is the state double?"""

    states: tuple[State, ...]
    join: tuple[str, ...]
    merge: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    results: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    sequential: bool = False
    widens: bool = False
    part: Form | None = None
    joint: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    widened: bool = False


# ------------------------------------------------------------------------------------------------------ made by hand


_CLAUSES = {"add": "+", "mul": "*", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
"""Ops by which OpenMP merges lanes."""


def _operator(name: str, dtype: torch.dtype) -> tuple[str, str]:
    """Returns the operator that joins two states of a row, and the state of no values."""
    form = REDUCTIONS[name].form(dtype)
    return _CLAUSES[form.merge[0].op], str(int(form.identity[0].attrs[0]))


def _worst(name: str, dtype: torch.dtype) -> str:
    """The value that every other one beats."""
    return literal(REDUCTIONS[name].form(dtype).identity[0].attrs[0], dtype)


def _accumulated(name: str, dtype: torch.dtype) -> Form:
    type_, (sign, start) = VALUES[dtype], _operator(name, dtype)
    update = f"{{0}} {sign}= {{v0}};" if dtype.is_floating_point else f"{{0}} = ({type_})({{0}} {sign} {{v0}});"
    return Form((State(name, type_, start, sign),), (update,), (f"{{0}} {sign}= {{p0}};",), widens=True)


def _dot(name: str, dtype: torch.dtype) -> Form:
    if not dtype.is_floating_point:
        return derived(REDUCTIONS[name], dtype)
    return replace(_accumulated("sum", dtype), join=("{0} = multiply_add({v0}, {v1}, {0});",))


def _tested(name: str, dtype: torch.dtype) -> Form:
    condition, (sign, start) = "{v0}" if dtype == torch.bool else "({v0} != 0)", _operator(name, dtype)
    return Form(
        (State(name, "int", start, sign),),
        (f"{{0}} {sign}= (int){condition};",),
        (f"{{0}} {sign}= {{p0}};",),
        results=dict.fromkeys(("any", "all", "sum", "prod", "max", "min"), "({0} != 0)"),
    )


def _extreme(name: str, dtype: torch.dtype) -> Form:
    floats = dtype.is_floating_point
    value = State(name, VALUES[dtype], _worst(name, dtype), EXTREMES[name] if floats else name)
    better = "{{0}} = {{{other}0}} {sign} {{0}} ? {{{other}0}} : {{0}};"
    update, merge = (better.format(sign=SIGNS[name], other=other) for other in "vp")
    if not floats:
        return Form((value,), (update,), (merge,))
    # A flag for NaN keeps the comparison itself a single instruction; it is as wide as the value's lanes.
    flag = State("nan", "i64" if dtype == torch.float64 else "int", "0", "|")
    return Form(
        (value, flag),
        (update, "{1} |= {v0} != {v0};"),
        (merge, "{1} |= {p1};"),
        (f"{{0}} = {{1}} ? {literal(float('nan'), dtype)} : {{0}};",),
    )


def _position(name: str, dtype: torch.dtype) -> Form:
    type_, beats = VALUES[dtype], name.replace("arg", "beats_")
    return Form(
        (State("best", type_, _worst(name, dtype)), State("at", "i64", "0")),
        (
            f"const bool {{n0}}_better = {beats}<{type_}>({{v0}}, {{0}});",
            "{0} = {n0}_better ? {v0} : {0};",
            "{1} = {n0}_better ? (i64)({at}) : {1};",
        ),
        (f"if ({beats}({{p0}}, {{0}})) {{{{ {{0}} = {{p0}}; {{1}} = {{p1}}; }}}}",),
        results={name: "{1}"},
        block=(f"{name}_block({{buffer}}, (int)({{count}}), (i64)({{start}}), {{0}}, {{1}});",),
    )


def _shifted_moments(name: str, dtype: torch.dtype) -> Form:
    """Welford's method for the distances from the first value. A mean of the values themselves has few digits for their
    distances from it, which are all that squared deviations are made of."""
    type_, result = VALUES[dtype], _type_of_moments(name, dtype)
    states = (State("shift", type_, "0"), State("mean", type_, "0"), State("m2", type_, "0"))
    return Form(
        (*states, State("weight", type_, "0", shared=True), State("differs", "int", "0")),
        (
            "{0} = {3}_first ? {v0} : {0};",
            f"const {type_} {{n0}}_off = {{v0}} - {{0}}, {{n0}}_delta = {{n0}}_off - {{1}};",
            *("{4} |= __builtin_bit_cast(int, {n0}_off);",) * (type_ == "float"),
            f"const {type_} {{n0}}_step = {{n0}}_delta * {{3}}_share;",
            "{1} += {n0}_step; {2} += {n0}_delta * ({n0}_delta - {n0}_step);",
        ),
        results={f"{name}_mean": f"({result})({{0}} + {{1}})", f"{name}_m2": f"({result}){{2}}"},
        before=("const bool {3}_first = {3} == 0;", "{3} += 1;", f"const {type_} {{3}}_share = 1 / {{3}};"),
        lost=("{p0} |= !({2} < 1e37f) | (({2} < 1e-30f) & ({4} != 0));",) if type_ == "float" else (),
    )


_MOMENTS = tuple(State(stem, "double", "0") for stem in ("mean", "m2", "weight"))


def _type_of_moments(name: str, dtype: torch.dtype) -> str:
    return VALUES[REDUCTIONS[f"{name}_mean"].form(dtype).state[0].dtype]


def _moments(name: str, dtype: torch.dtype) -> Form:
    type_ = _type_of_moments(name, dtype)
    return Form(
        (*_MOMENTS[:2], replace(_MOMENTS[2], shared=True)),
        (
            "const double {n0}_delta = {v0} - {0};",
            "{0} += {n0}_delta * {2}_share;",
            "{1} += {n0}_delta * ({v0} - {0});",
        ),
        (
            "const double {n0}_apart = {p0} - {0} + {p1};",
            "{0} += {n0}_apart * {2}_share;",
            "{1} += {p2} + {n0}_apart * {n0}_apart * {2}_both;",
        ),
        results={f"{name}_mean": f"({type_}){{0}}", f"{name}_m2": f"({type_}){{1}}"},
        before=("{2} += 1;", "const double {2}_share = 1 / {2};"),
        block=("welford_block({buffer}, (int)({count}), {0}, {1}, {2});",),
        part=_shifted_moments(name, dtype),
        joint=("const double {2}_share = {p3} / ({2} + {p3});", "const double {2}_both = {2} * {2}_share;"),
        total=("{2} += {p3};",),
    )


def _moments_of_states(name: str, dtype: torch.dtype) -> Form:
    type_, merge = _type_of_moments(name, dtype), "welford_merge({{0}}, {{1}}, {{2}}, {{{0}0}}, {{{0}1}}, {{{0}2}});"
    results = {f"{name}_{state.name}": f"({type_}){{{number}}}" for number, state in enumerate(_MOMENTS)}
    return Form(_MOMENTS, (merge.format("v"),), (merge.format("p"),), results=results, sequential=True)


FORMS: Mapping[str, Callable[[str, torch.dtype], Form]] = {
    **dict.fromkeys(("sum", "prod"), cache(_accumulated)),
    **dict.fromkeys(("any", "all"), cache(_tested)),
    **dict.fromkeys(("max", "min"), cache(_extreme)),
    **dict.fromkeys(("argmax", "argmin"), cache(_position)),
    "dot": cache(_dot),
    **dict.fromkeys(("welford", "welford_double"), cache(_moments)),
    **dict.fromkeys(("welford_combine", "welford_double_combine"), cache(_moments_of_states)),
}
"""The form made by hand, by the reduction's row."""


def form_of(held: Held) -> Form:
    """Returns the form of what a reduction or a scan holds."""
    if held.scans:
        return scan_form(held.kind, held.dtype)
    row, dtype = family(held.kind, held.dtype), held.dtype
    form = FORMS[row](row, dtype) if row in FORMS else derived(REDUCTIONS[held.kind], dtype)
    form = form.part or form if held.few else form
    if not held.wide or not form.widens:
        return form
    states = tuple(replace(state, type="double") if state.type == "float" else state for state in form.states)
    return replace(form, states=states, widened=states != form.states)


def scan_form(kind: str, dtype: torch.dtype) -> Form:
    """Returns the form of a scan. Sums and products of floats run in double, as eager's do."""
    type_ = VALUES[dtype]
    if kind in ("sum", "prod"):
        type_, (sign, start) = "double" if dtype.is_floating_point else type_, _operator(kind, dtype)
        return Form((State("run", type_, start),), (f"{{0}} = ({type_})({{0}} {sign} {{v0}});",))
    if kind in ("max", "min") and dtype != torch.bool:
        update = f"{{0}} = {kind}imum<{type_}>({{v0}}, {{0}});"
        return Form((State("run", type_, _worst(kind, dtype)),), (update,))
    row = scan_row(kind)
    assert row is not None
    return derived(row, dtype)


# ------------------------------------------------------------------------------------------------------ from the row


def derived(row: Reduction, dtype: torch.dtype) -> Form:
    """Returns the form that follows from a reduction's row."""
    form = row.form(dtype)
    stems = (row.name,) if len(form.state) == 1 else row.parts
    clause = ""
    if len(form.merge) == 1 and not row.ordered and set(form.merge[0].args) == {form.state[0], form.other[0]}:
        clause = "" if form.state[0].dtype == torch.bool else _CLAUSES.get(form.merge[0].op, "")
    states = tuple(
        State(stem, VALUES[node.dtype], literal(node.attrs[0], node.dtype), clause)
        for stem, node in zip(stems, form.identity, strict=True)
    )
    given = {node: f"{{{number}}}" for number, node in enumerate(form.state)}
    others = {node: f"{{p{number}}}" for number, node in enumerate(form.other)}
    values = {node: f"{{v{number}}}" for number, node in enumerate(form.values)}
    step = form.step
    if row.begins_with_first:
        begins = call("eq", form.position, const(0, torch.int64))
        step = tuple(call("where", begins, lifted, node) for lifted, node in zip(form.lift, step, strict=True))
    return Form(
        states,
        _statements(step, {**given, **values, form.position: "(i64)({at})"}),
        _statements(form.merge, {**given, **others}),
        results={kind: _expression(node, given) for kind, node in form.finish.items()},
        sequential=not clause,
    )


def _statements(roots: Sequence[Node], given: Mapping[Node, str]) -> tuple[str, ...]:
    """Returns the statements that compute the roots and assign them to {0}, {1}, ..."""
    texts, lines = dict(given), list[str]()
    for node in walk(*roots):
        if node not in texts:
            texts[node] = _expression(node, texts)
            if node.op != "const":
                name = f"{{n0}}_{len(lines)}"
                lines.append(f"const {VALUES[node.dtype]} {name} = {texts[node]};")
                texts[node] = name
    return (*lines, *(f"{{{number}}} = {texts[root]};" for number, root in enumerate(roots)))


def _expression(node: Node, given: Mapping[Node, str]) -> str:
    """The text of a node over those that are given, in parentheses."""
    if node in given:
        return given[node]
    if node.op == "const":
        return f"({literal(node.attrs[0], node.dtype)})"
    args = [_expression(arg, given) for arg in node.args]
    if node.op == "cast":
        return f"({CPP.cast(args[0], node.args[0].dtype, node.dtype)})"
    return f"({op_text(node.op, node.args[0].dtype, node.dtype, args, VALUES[node.dtype])})"
