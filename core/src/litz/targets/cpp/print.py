"""C++ text of a `Nest`: the only place where a kernel's loops, values and reductions are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from litz.codegen.dialect import combining
from litz.ir.dtypes import FLOAT8, HALF, ROUNDED
from litz.ir.index import placeholder
from litz.ir.ops import OPS
from litz.runtime.cpp_compiler import WIDEST
from litz.tiles import program as tile
from litz.tiles.program import Access, Element, Held, Line, Nest, Operand, Value

from .dialect import CPP, ELEMENTS, VALUES, literal, op_text, read, written
from .forms import State, form_of
from .text import IndexText
from .tiling import EXPENSIVE

APART = 32
"""Values of a long row that enter states of their own: two of the widest vectors, four of the next."""
CHOICES = frozenset({"neg", "abs", "maximum", "minimum", "where", "cast"})


@dataclass
class Lines:
    """The lines of a C++ text that is being written, with their indentation."""

    text: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, *lines: str) -> None:
        """Appends lines, indented by the present depth."""
        # A pragma belongs to the loop below it, at the same depth.
        self.text += ["  " * self.depth + line if line else "" for line in lines]

    @contextmanager
    def block(self, *header: str) -> Iterator[None]:
        """Writes `header {` and, after the body of the `with` statement, `}`. All lines of the header but the last
        stand above the one with the brace."""
        self.add(*header[:-1], f"{header[-1]} {{" if header[-1] else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


class Printer:
    """Prints lines of a nest. team: within a parallel region, whose threads share its loops and need not wait for each
    other at their ends. parallel_values, long_values: see `CppFigures`; 0 of long_values: no row is long."""

    def __init__(self, nest: Nest, lines: Lines, parallel_values: int, long_values: int = 0, team: bool = False):
        self.nest, self.lines, self.team, self.own, self.steps = nest, lines, team, dict[Held, Held](), dict[str, int]()
        self.parallel_values, self.long_values = parallel_values, long_values
        self.narrowest = min((buffer.dtype.itemsize for buffer in nest.buffers.values()), default=WIDEST)
        self.form, self.index = form_of, IndexText(nest.names.index_names, nest.extents)
        for line in (every := list(nest.lines)):  # the lines of bodies join the list
            every += getattr(line, "body", ())
        stored = {line.value for line in every if isinstance(line, tile.Store) and line.mode == "set"}
        stored |= {line.value for line in every if isinstance(line, tile.Put) and line.place.stored}
        # A copy moves the bits of these values, so NaN keeps its bits.
        read = [line.value for line in every if isinstance(line, tile.Load)]
        ops = [line for line in every if isinstance(line, tile.Op)]
        same = [(op.value, op.args[0]) for op in ops if op.op == "same"]
        read += [value for value, of in same if isinstance(of, Element) and of.stored]
        self.copied = {value.text for value in read if value in stored and value.dtype in HALF}
        self.exact, self.cut = {value.text for value in read if value.dtype == torch.bfloat16}, set[str]()
        for op in ops:
            self._learn(op)

    def print(self, lines: Sequence[Line]) -> None:
        """Writes lines, in order."""
        for line in lines:
            getattr(self, f"_{type(line).__name__.lower()}")(line)

    def whole(self) -> None:
        """Writes the body of the kernel's function."""
        nest, add = self.nest, self.lines.add
        for number, name in enumerate(nest.starts, len(nest.names.sizes)):
            add(f"{nest.names.buffers[name]} += s{number};")
        if nest.parts:
            region = f"#pragma omp parallel{self.worth_it()}"
            with self.lines.block(*((region, "") if nest.threaded else ("",))):
                for part in nest.parts:
                    with self.lines.block(""):
                        Printer(part, self.lines, self.parallel_values, self.long_values, True).print(part.lines)
        elif not nest.lines:
            add("return 0;  // no elements")
            return
        elif nest.checks:
            add("int bad = 0;")
        self.print(nest.lines)
        add("return bad;" if nest.checks else "return 0;")

    # Loops.

    def worth_it(self) -> str:
        """Returns the clause that checks at run time whether there is enough work for threads; "" for sizes known."""
        work = self.nest.work
        return "" if work.is_Integer else f" if ({self.index.text(work)} >= {self.parallel_values})"

    def _each(self, each: tile.Each) -> None:
        levels = [each]
        while len(levels) < each.shared:
            (inner,) = levels[-1].body
            assert isinstance(inner, tile.Each)
            levels.append(inner)
        self.steps |= {level.axis: level.step for level in levels}
        if self._is_long(each):
            return self._in_lanes(each)
        for span in self._spans(each):
            self.lines.add(*self._pragmas(each))
            with ExitStack() as blocks:
                for level in levels:
                    if level is not each:
                        self.lines.add(*self._pragmas(level))
                    blocks.enter_context(self.lines.block(self._header(level, *span)))
                self.lines.add(*(line for level in levels for line in self._first(level)))
                self.print(levels[-1].body)

    def _spans(self, each: tile.Each) -> list[tuple[int, int]]:
        """The parts of a loop: the first position, and how many positions before the end the part ends. g++ reduces the
        rest of a row one by one. In a short row, what the widest vectors leave is parts of shorter vectors."""
        plain = each.vector and each.merged and not (each.shared or each.step or each.within or each.checks)
        flops = sum(OPS[line.op].flops for line in each.body if isinstance(line, tile.Op) and line.op in OPS)
        alone = len(self._states(each)) == 1 and flops < EXPENSIVE  # adding up each part's vector costs as much
        widest = WIDEST // self.narrowest
        if not plain or alone or not each.size.is_Integer or int(each.size) >= 8 * widest:
            return [(0, 0)]
        spans, left = list[tuple[int, int]](), int(each.size)
        for lanes in (widest, widest // 2, widest // 4, 1):
            spans += [(int(each.size) - left, left % lanes)] * (left >= lanes)
            left %= lanes
        return spans

    def _states(self, each: tile.Each) -> list[State]:
        return [state for held in each.merged for state in self.form(held).states]

    def _is_long(self, each: tile.Each) -> bool:
        """Says whether a loop reduces so many values that additions would wait for each other. As many halves as a
        vector holds are two vectors of float32, which wait less."""
        held = self._states(each)
        plain = each.vector and not (each.shared or each.step or each.flat or each.checks or each.unroll or each.apart)
        most = self.steps.get(each.within, 0) if each.within else int(each.size) if each.size.is_Integer else 0
        many = most >= self.long_values > 0 and self.narrowest >= 4 and torch.bool not in {h.dtype for h in each.merged}
        return plain and many and bool(held) and all(state.clause for state in held)

    def _in_lanes(self, each: tile.Each) -> None:
        """Writes a long loop: values that are neighbours enter states of their own, which are merged behind it."""
        name, type_ = each.axis, self.index.var_type(each.size)
        start, stop = (each.within, f"{each.within}_end") if each.within else ("0", self.index.text(each.size))
        own = {held: replace(held, suffix=f"{held.suffix}_v", lane=(name, f"{name}_v", APART)) for held in each.merged}
        pragmas = list(self._pragmas(each))
        lanes = f"for ({type_} {name} = {name}_v; {name} < {name}_v + {APART}; ++{name})"
        with self.lines.block(""):
            self.lines.add(f"{type_} {name}_v = {start};")
            self.print([tile.Fold("make", held) for held in own.values()])
            with self.lines.block("#pragma omp simd", lanes):
                self.print([tile.Fold("start", held) for held in own.values()])
            blocks = f"for (; {name}_v <= {stop} - {APART}; {name}_v += {APART})"
            with self.lines.block(blocks), self.lines.block("#pragma omp simd", lanes):
                self.own = own
                self.print(each.body)
                self.own = {}
            with self.lines.block(*pragmas, lanes):
                self.print([tile.Fold("merge", held, other=apart) for held, apart in own.items()])
            with self.lines.block(*pragmas, f"for ({type_} {name} = {name}_v; {name} < {stop}; ++{name})"):
                self.print(each.body)

    def _if(self, line: tile.If) -> None:
        test = f"__builtin_expect({self.refs(line.odd)[0]}, 0)"
        with self.lines.block(f"if ({test if line.lost else f'!{test}'})"):
            self.print(line.body)

    def _pragmas(self, each: tile.Each) -> Iterator[str]:
        check = " reduction(max : bad)" if each.checks else ""
        if each.shared:
            several = f" collapse({each.shared})" if each.shared > 1 else ""
            text = f"#pragma omp {'' if self.team else 'parallel '}for{' simd' * each.vector}{several}"
            text += f" schedule({'dynamic' if each.uneven else 'static'})"
            yield f"{text}{' nowait' if self.team else self.worth_it()}{check}"
        elif each.vector:
            merged = (
                f" reduction({state.clause} : {ref})"
                for held in each.merged
                for state, ref in zip(self.form(held).states, self.refs(held), strict=True)
                if state.clause
            )
            yield f"#pragma omp simd{''.join(merged)}{check}"
        if each.unroll:
            yield f"#pragma GCC unroll {each.unroll}"

    def _header(self, each: tile.Each, first: int, before: int) -> str:
        name, start, stop, step = each.axis, str(first), self.index.text(each.size - before), f"++{each.axis}"
        if each.step:
            step = f"{name} += {each.step}"
        elif each.flat:
            stop = f"({each.within}_end - {each.within}) * {each.flat}"
        elif each.within:
            start, stop = each.within, f"{each.within}_end"
        return f"for ({self.index.var_type(each.size)} {name} = {start}; {name} < {stop}; {step})"

    def _first(self, each: tile.Each) -> Iterator[str]:
        """Yields the lines at the start of a loop's body."""
        if each.step:
            name, extent, type_ = each.axis, self.index.text(each.size), self.index.var_type(each.size)
            if each.size.is_Integer and int(each.size) % each.step == 0:
                yield f"const {type_} {name}_end = {name} + {each.step};"
            else:
                short = f"{extent} - {name} < {each.step}"
                yield f"const {type_} {name}_end = {short} ? {extent} : {name} + {each.step};"
        if each.apart:
            yield "ONE_BY_ONE;"

    def _copy(self, copy: tile.Copy) -> None:
        at = f"{copy.block} + {copy.number}" if copy.number else copy.block
        size, type_ = self.index.text(copy.size), self.index.var_type(copy.size)
        last = at if copy.whole or not copy.number else f"{at} < {size} ? {at} : {size} - 1"
        self.lines.add(f"const {type_} {copy.name} = {last};")

    def _leave(self, leave: tile.Leave) -> None:
        empty = " || ".join(f"{self.index.text(size)} == 0" for size in leave.empty)
        some = "".join(f" && {self.index.text(size)}" for size in leave.some)
        self.lines.add(f"if ({empty}{some}) return {leave.code};")

    # Rooms.

    def _room(self, room: tile.Room) -> None:
        type_ = (ELEMENTS if room.stored else VALUES)[room.dtype]
        self.lines.add(f"alignas(64) {type_} {room.name}[{room.count}];")

    def _put(self, put: tile.Put) -> None:
        value = self.memory(put.value) if put.place.stored else self.operand(put.value)
        self.lines.add(f"{self.element(put.place)} = {value};")

    def _move(self, move: tile.Move) -> None:
        place, spans = f"&{self.place(move.access)}", []
        for block in move.blocks:
            stop = self.index.text(move.size) if block == "0" else f"{block}_end"
            spans.append(f"{stop} - {block}")
        if move.step is None:
            ends = (place, move.room) if move.how == "widen" else (move.room, place)
            self.lines.add(f"{move.how}_f16({', '.join((*ends, *spans))});")
            return
        memory, room = f"{place}, {self.index.text(move.step)}", f"{move.room}, {move.side}"
        both = (memory, room, *reversed(spans)) if move.how == "load" else (room, memory, *spans)
        self.lines.add(f"transpose({', '.join(both)});")

    # Values.

    def operand(self, operand: Operand) -> str:
        """Returns the text of an operand."""
        if isinstance(operand, Value):
            return operand.text
        if isinstance(operand, tile.Const):
            return literal(operand.value, operand.dtype)
        if isinstance(operand, Element):
            text = self.element(operand)
            return read(operand.dtype, text) if operand.stored else text
        if isinstance(operand, tile.Again):
            return read(operand.dtype, self.place(operand.access))
        if isinstance(operand, tile.As):
            return self.floating(operand.of)
        if isinstance(operand, tile.Position):
            return self.index.text(operand.expr, dict(operand.at))
        assert isinstance(operand, tile.Result)
        return self._result(operand)

    def argument(self, operand: Operand) -> str:
        """Returns the text of an operand within an expression."""
        text = self.operand(operand)
        return f"({text})" if text.startswith("-") else text

    def floating(self, operand: Operand) -> str:
        """Returns the text of an operand as a float."""
        floats = VALUES[operand.dtype] == "float"
        return self.operand(operand) if floats else CPP.cast(self._whole(operand), operand.dtype, torch.float32)

    def _whole(self, operand: Operand) -> str:
        """Returns the text of an operand that becomes a float. Where a float becomes an integer and then a float, g++
        12 only cuts digits off: -0.5 becomes -0, and what no int holds stays."""
        text = self.argument(operand)
        return f"({text} & ({VALUES[operand.dtype]})ALL_BITS)" if text in self.cut else text

    def memory(self, operand: Operand) -> str:
        """Returns the text of an operand as memory holds it: of a float8 the bits, of a half type rounded."""
        if isinstance(operand, tile.Coded):
            return written(operand.as_type, self.floating(operand.of))
        if isinstance(operand, Element) and operand.stored:
            return self.element(operand)
        text = self.operand(operand)
        if isinstance(operand, Value) and text in self.copied:
            return f"{text}_bits"
        if text in self.exact and operand.dtype == torch.bfloat16:
            return f"({ELEMENTS[torch.bfloat16]})(bits({text}) >> 16)"
        return text if operand.dtype in FLOAT8 else written(operand.dtype, text)

    def _learn(self, op: tile.Op) -> None:
        """Notes whether bfloat16 holds a value as it is, which is rounded or chosen of such values, so that nothing is
        left to round; and whether a value is an integer that was made of a float."""
        value, args = op.value, op.args[op.op == "where" :]
        names = {arg.text for arg in args if isinstance(arg, Value)}
        numbers = [float(arg.value) for arg in args if isinstance(arg, tile.Const)]
        held = bool(names) and names <= self.exact and torch.tensor(numbers).bfloat16().tolist() == numbers
        rounded = op.op == "cast" and value.dtype == torch.bfloat16
        if rounded or (VALUES[value.dtype] == "float" and op.op in CHOICES and held):
            self.exact.add(value.text)
        if op.op == "cast" and not value.dtype.is_floating_point:
            self.cut |= {value.text} if args[0].dtype.is_floating_point or names & self.cut else set()

    def element(self, element: Element) -> str:
        """Returns the text of a room's element."""
        several, parts = len(element.at) > 1, list[str]()
        for expr, start, times in element.at:
            text = f"{self.index.text(expr)} - {start}" if start else self.index.text(expr)
            text = f"({text})" if several and start else text
            parts.append(f"{text} * {times}" if times > 1 or (several and len(parts) == 0) else text)
        return f"{element.room}[{' + '.join(parts)}]"

    def place(self, access: Access) -> str:
        """Returns the text of an element of a buffer, such as `p0[...]`."""
        values, type_ = dict(access.at), "int" if access.narrow else "i64"
        for n, each in enumerate(access.indirect):
            values[placeholder(n)] = f"({type_}){self.argument(each)}"
        return f"{self.nest.names.buffers[access.buffer]}[{self.index.text(access.offset, values, access.narrow)}]"

    def type_of(self, value: Value) -> str:
        """Returns the C++ type of a value: `int` for an int64 that is small, so that lanes are 32 bits wide."""
        return "int" if value.narrow else VALUES[value.dtype]

    def _op(self, op: tile.Op) -> None:
        value, type_ = op.value, self.type_of(op.value)
        if value.dtype in FLOAT8 and op.op != "decode":
            type_, text = ELEMENTS[value.dtype], self._bits(op)
        elif op.op == "decode":
            text = read(value.dtype, self.operand(op.args[0]))
        elif op.op == "opaque":  # g++ 12 and 13 gather from wrong places where an index is a bool
            text = f"{self.operand(op.args[0])} & ({type_})ALL_BITS"
        elif value.text in self.copied:
            return self._bits_and_value(value, self.memory(op.args[0]))
        elif op.op in ("same", "index"):
            text = self.operand(op.args[0])
        elif op.op == "cast":
            argument = self._whole if value.dtype.is_floating_point else self.argument
            text = CPP.cast(argument(op.args[0]), op.args[0].dtype, value.dtype, type_)
        elif op.op == "bitcast" and (isinstance(op.args[0], tile.Coded) or op.args[0].dtype in FLOAT8):
            text = f"bitcast<{ELEMENTS[value.dtype]}>({self.memory(op.args[0])})"
        elif op.op == "bitcast":
            text = CPP.bitcast(self.argument(op.args[0]), op.args[0].dtype, value.dtype)
        else:
            text = op_text(op.op, op.args[0].dtype, value.dtype, list(map(self.argument, op.args)), type_)
        self.lines.add(f"const {type_} {value.text} = {text};")

    def _bits(self, op: tile.Op) -> str:
        """The bits of a float8: a copy moves these, and NaN keeps them."""
        if op.op == "where":
            condition, *both = op.args
            return "{} ? {} : {}".format(self.operand(condition), *map(self.memory, both))
        if op.op == "byte":
            return f"bitcast<{ELEMENTS[op.value.dtype]}>({self.memory(op.args[0])})"
        return self.memory(op.args[0])

    def _load(self, load: tile.Load) -> None:
        dtype, place, name = load.value.dtype, self.place(load.access), load.value.text
        bits = (copied := name in self.copied) or dtype in FLOAT8
        text, type_ = (place, ELEMENTS[dtype]) if bits else (read(dtype, place), self.type_of(load.value))
        if load.zero:
            zero = f"({type_})0" if bits else "0" if dtype == torch.int64 else literal(0, dtype)
            text = f"{self.operand(load.masks[0])} ? {text} : {zero}"  # type: ignore[arg-type]
        if copied:
            return self._bits_and_value(load.value, text)
        self.lines.add(f"const {type_} {name} = {text};")

    def _bits_and_value(self, value: Value, text: str) -> None:
        """A half as memory holds it, for stores, and its number, which other lines may use."""
        bits = f"{value.text}_bits"
        self.lines.add(f"const {ELEMENTS[value.dtype]} {bits} = {text};")
        self.lines.add(f"const float {value.text} = {read(value.dtype, bits)};")

    def _check(self, check: tile.Check) -> None:
        name, held = self.operand(check.position), check.held.text
        fine = "".join(f"({held} | !{self.operand(mask)})" for mask in check.masks) or held  # type: ignore[arg-type]
        number = self.nest.checks.index((check.size, check.what)) + 1
        self.lines.add(
            f"const bool {held} = (u64){name} < (u64){self.index.text(check.size)};",
            f"bad = {fine} ? bad : {number};",
            # A position that does not hold reads element 0; the kernel's result is an error anyway.
            f"const {self.type_of(check.value)} {check.value.text} = {held} ? {name} : 0;",
        )

    def _store(self, store: tile.Store) -> None:
        place, dtype = self.place(store.access), self.nest.buffers[store.access.buffer].dtype
        if store.mode == "set":
            statement = f"{place} = {self.memory(store.value)};"
        else:
            statement = self._combine(store.mode, place, self.operand(store.value), dtype)
        masks = "".join(f"if ({self.operand(mask)}) " for mask in store.masks)  # type: ignore[arg-type]
        self.lines.add(f"{masks}{statement}")

    def _combine(self, mode: str, place: str, value: str, dtype: torch.dtype) -> str:
        kind = combining(mode, dtype)
        if dtype in ROUNDED:
            change = written(dtype, f"combined_{kind}({read(dtype, 'old')}, {value})")
            if self.nest.atomic:
                return f"atomic_update(&{place}, [=]({ELEMENTS[dtype]} old) {{ return {change}; }});"
            return f"{{ auto& place = {place}; const {ELEMENTS[dtype]} old = place; place = {change}; }}"
        element = "u8" if dtype == torch.bool else VALUES[dtype]
        if self.nest.atomic:
            return f"atomic_{kind}(&{place}, ({element}){value});"
        return f"{{ auto& place = {place}; place = combined_{kind}(place, ({element}){value}); }}"

    # Reductions.

    def refs(self, held: Held) -> list[str]:
        """Returns the variables of what is held."""
        held = self.own.get(held, held)
        lane = "" if held.lane is None else f"[{held.lane[0]} - {held.lane[1]}]"
        named = zip(self.form(held).states, held.names, strict=True)
        return [name + held.suffix + ("" if state.shared else lane) for state, name in named]

    def _fold(self, fold: tile.Fold) -> None:
        held, form, refs = fold.held, self.form(fold.held), self.refs(fold.held)
        if fold.step == "group":
            return self._group(held, fold.block, fold.times)
        for state, ref in zip(form.states, refs, strict=True) if fold.step in ("make", "start") else ():
            if fold.step == "make" and held.lane is not None and not state.shared:
                self.lines.add(f"alignas(64) {state.type} {ref.partition('[')[0]}[{held.lane[2]}];")
            elif fold.step == "make" or state.shared == fold.shared:
                self.lines.add(f"{state.type} " * (fold.step == "make") + f"{ref} = {state.start};")
        texts = {f"n{n}": name for n, name in enumerate(held.names)}
        texts |= {f"v{n}": self.operand(arg) for n, arg in enumerate(fold.args)}
        if fold.other is not None:
            texts |= {f"p{n}": ref for n, ref in enumerate(self.refs(fold.other))}
        if fold.name:
            texts["n0"] = fold.name
        if fold.at is not None:
            texts["at"] = texts["start"] = self.operand(fold.at)
        if fold.step == "block":
            texts["buffer"] = fold.array if isinstance(fold.array, str) else f"&{self.place(fold.array)}"
            stop = f"{fold.block}_end" if fold.size is None else self.index.text(fold.size)
            texts["count"] = f"{stop} - {fold.block}" if fold.block else stop
        self.lines.add(*(template.format(*refs, **texts) for template in getattr(form, fold.step, ())))

    def _group(self, held: Held, block: str, count: int) -> None:
        """Writes a loop over groups of so many neighbouring lanes, whose states become one that all of them have."""
        assert held.lane is not None
        name, states = held.lane[0], self.form(held).states
        merge = self.form(replace(held, kind="welford_combine_mean") if self.form(held).part else held).merge
        whole = replace(held, suffix=f"{held.suffix}_group", lane=None, wide=True)
        lanes = f"for (i64 {name} = {name}_g; {name} < {name}_g + {count}; ++{name})"
        with self.lines.block(f"for (i64 {name}_g = {block}; {name}_g < {block}_end; {name}_g += {count})"):
            self.print([tile.Fold("make", whole)])
            own, every = self.refs(held), self.refs(whole)
            with self.lines.block(lanes):
                self.lines.add(*(step.format(*every, **{f"p{n}": ref for n, ref in enumerate(own)}) for step in merge))
            with self.lines.block(lanes):
                self.lines.add(*(f"{a} = {b};" for s, a, b in zip(states, own, every, strict=True) if not s.shared))

    def _result(self, result: tile.Result) -> str:
        held, form, type_ = result.held, self.form(result.held), VALUES[result.dtype]
        text = form.results.get(result.kind, "{0}").format(*self.refs(held))
        return f"({type_}){text}" if held.scans or form.widened else text
