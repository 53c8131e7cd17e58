"""Collectives in pieces, each behind a product of another piece. In: steps. Out: `Site`s, and a site's steps in pieces.

    all_gather -> products          gather 0, gather 1, ...; products of what gather 0 brought, then of gather 1's, ...
    product -> reduce_scatter       product 0, scatter 0, product 1, scatter 1, ...
    product -> all_reduce           product 0, reduction 0, product 1, reduction 1, ...

Pieces are ranges of rows, the same on every rank. Of a gather and a scatter these are rows of each rank's part, so the
product of a piece has rows of every rank's part: a product of a batch of as many matrices as there are ranks, which
reads or writes them where they stand in the whole. Results of pieces are written into the whole's memory by the ops
themselves, so that nothing is put together afterwards; only a gathered tensor that something else reads as a whole is
copied together. A product that cannot be cut (it is a kernel of its own, or somebody else reads what it makes) stays
whole, and the pieces of its collective are copies: so every rank can follow a plan that another rank made, whatever its
own products became.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed._functional_collectives  # defines the ops
from torch._ops import OpOverload

from litz.ir import Buffer, Collective, Extern, KernelCall, Layout, Program, TensorRef, Wait
from litz.ir.index import ZERO, Expr, to_expr
from litz.schedule.schedule import Step

aten, _ops = torch.ops.aten, torch.ops._c10d_functional

Kind = Literal["gather", "scatter", "reduce"]
KINDS: Mapping[Any, Kind] = {
    _ops.all_gather_into_tensor.default: "gather",
    _ops.reduce_scatter_tensor.default: "scatter",
    _ops.all_reduce.default: "reduce",
}
PRODUCTS: Mapping[Any, int] = {aten.mm.default: 0, aten.addmm.default: 1}
"""Op of a product -> the position of the operand whose rows are the result's rows; the other operand comes next."""
BATCHED: Mapping[Any, tuple[OpOverload, OpOverload]] = {
    aten.mm.default: (aten.bmm.default, aten.bmm.out),
    aten.addmm.default: (aten.baddbmm.default, aten.baddbmm.out),
}
"""The op of a batch of such products: that returns its result, that writes where it is told."""
WRITING: Mapping[Any, OpOverload] = {aten.mm.default: aten.mm.out, aten.addmm.default: aten.addmm.out}


@dataclass(frozen=True)
class Site:
    """A collective that can be cut. rows: of each rank's part (of the whole, for an all_reduce); width: elements of a
    row. products: those that are cut with it, at their places in the order of steps. whole: whether something reads the
    gathered tensor as a whole. why: why there are no products."""

    kind: Kind
    collective: Collective
    wait: Wait
    rows: int
    width: int
    products: tuple[Extern, ...] = ()
    whole: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """Returns the name of the collective."""
        return self.collective.name

    @property
    def family(self) -> tuple[Any, ...]:
        """Returns what sites have in common that are cut alike: a model's layers have the same."""
        step = self.collective
        products = tuple((one.target, *(ref.layout.size for ref in one.refs)) for one in self.products)
        return self.kind, self.rows, self.width, step.group, step.args[1:], products, self.whole


@dataclass(frozen=True)
class Piece:
    """A step of a site in pieces. at: the step in whose place it may stand in the program's order; wanted: where it
    hides something, if what it needs is there. turn: its order among those of the same place."""

    step: Step
    at: str
    wanted: str
    turn: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """A site in pieces. gone: names of the steps that these replace. buffers: new ones, by name. lost: names of those
    that nothing uses any more."""

    pieces: tuple[Piece, ...]
    gone: frozenset[str]
    buffers: Mapping[str, Buffer]
    lost: frozenset[str]


# ------------------------------------------------------------------------------------------------------ what can be cut


def sites_of(steps: Sequence[Step], program: Program) -> dict[str, Site]:
    """Returns the collectives that can be cut, by name. A product belongs to one of them, the first that it fits."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    writers = {name: step for step in steps for name in step.writes}
    found: dict[str, Site] = {}
    taken: set[str] = set()
    for step in steps:
        site = _site(step, program, readers) if isinstance(step, Collective) else None
        if site is None:
            continue
        known = (program, readers, writers, taken)
        site = _with_consumers(site, *known) if site.kind == "gather" else _with_producer(site, *known)
        taken |= {product.name for product in site.products}
        found[site.name] = site
    return found


def _site(step: Collective, program: Program, readers: Mapping[str, Sequence[Step]]) -> Site | None:
    """The collective as a site without products; None where its pieces would not be ranges of rows of one tensor."""
    kind = KINDS.get(step.target)
    ref = step.args[0] if step.args else None
    if kind is None or len(step.ranks) < 2 or not isinstance(ref, TensorRef) or len(step.outputs) != 1:
        return None
    output = step.outputs[0]
    waits = [one for one in readers.get(output or "", ()) if isinstance(one, Wait)]
    if step.kwargs or step.mutates or step.aliases or output is None or len(waits) != 1:
        return None
    sent, made = ref.layout, program.buffers[output].layout
    fixed = all(extent.is_Integer for extent in (*sent.size, *made.size, sent.offset))
    if not (fixed and sent.size and sent.is_contiguous() and made.is_contiguous() and made.offset == 0):
        return None
    width = int(sent.size[-1])
    parts = len(step.ranks) if kind == "scatter" else 1
    rows = int(sent.numel) // (width * parts) if width else 0
    return Site(kind, step, waits[0], rows, width) if rows > 1 else None


def _with_consumers(
    site: Site,
    program: Program,
    readers: Mapping[str, Sequence[Step]],
    writers: Mapping[str, Step],
    taken: set[str],
) -> Site:
    """A gather with the products whose rows are what it gathers."""
    names = {site.collective.outputs[0], *site.wait.outputs}
    using = dict.fromkeys(step.name for name in names if name for step in readers.get(name, ()))
    steps = {step.name: step for name in names if name for step in readers.get(name, ())}
    rows = site.rows * len(site.collective.ranks)
    products, others = list[Extern](), list[Step]()
    for name in using:
        step = steps[name]
        if step is site.wait:
            continue
        fits = isinstance(step, Extern) and step.name not in taken and _is_product_of(step, names, rows, site, program)
        (products if fits else others).append(step)  # type: ignore[arg-type]
    whole = bool(others) or not names.isdisjoint(program.output_buffers)
    why = "" if products else _why_whole([f"{_said(step)} reads it" for step in others], "no product reads it")
    return replace(site, products=tuple(products), whole=whole, why=why)


def _is_product_of(step: Extern, names: set[str | None], rows: int, site: Site, program: Program) -> bool:
    """Returns whether the rows of what was gathered are those of a product, and nothing else of it."""
    if not _is_product(step, program):
        return False
    at = PRODUCTS[step.target]
    own = step.args[at]
    if own.buffer not in names or sum(ref.buffer in names for ref in step.refs) != 1:
        return False
    return own.layout == Layout.contiguous((rows, site.width))


def _is_product(step: Extern, program: Program) -> bool:
    """Returns whether a step is the library's product of two matrices of fixed sizes, with a dense own result."""
    if not isinstance(step.target, OpOverload) or step.target not in PRODUCTS:
        return False
    if isinstance(step, KernelCall) or len(step.outputs) != 1 or step.outputs[0] is None:
        return False
    if step.mutates or step.aliases or step.unbacked or not step.kwargs.keys() <= {"beta", "alpha"}:
        return False
    made = program.buffers[step.outputs[0]].layout
    refs = (made, *(ref.layout for ref in step.refs))
    fixed = all(extent.is_Integer for layout in refs for extent in (*layout.size, *layout.stride, layout.offset))
    return fixed and made.is_contiguous() and made.offset == 0 and len(made.size) == 2


def _with_producer(
    site: Site,
    program: Program,
    readers: Mapping[str, Sequence[Step]],
    writers: Mapping[str, Step],
    taken: set[str],
) -> Site:
    """A reduction with the product that makes what it sends, and nothing else reads."""
    ref: TensorRef = site.collective.args[0]
    step = writers.get(ref.buffer)
    if step is None or program.buffers[ref.buffer].kind != "temporary":
        return replace(site, why="it sends what the graph was given")
    if not isinstance(step, Extern) or step.name in taken or not _is_product(step, program):
        return replace(site, why=f"{_said(step)} makes it")
    made = program.buffers[ref.buffer].layout
    if ref.layout.offset != 0 or ref.layout.numel != made.numel or made.size[-1] != site.width:
        return replace(site, why=f"it sends a part of what {step.name} makes, or has other rows")
    if len(readers[ref.buffer]) > 1 or ref.buffer in program.output_buffers or ref.buffer in program.roots:
        return replace(site, why=f"something else reads what {step.name} makes")
    return replace(site, products=(step,))


def _said(step: Step) -> str:
    what = step.target_name if isinstance(step, Extern) else "a kernel"
    return f"{step.name} ({what})"


def _why_whole(found: Sequence[str], otherwise: str) -> str:
    return ", ".join(found[:2]) if found else otherwise


# ------------------------------------------------------------------------------------------------------- how it is cut


def bounds(rows: int, count: int) -> list[tuple[int, int]]:
    """Returns the rows of each piece, from and to: `count` of them, or as many as there are rows."""
    count = min(count, rows)
    return [(rows * k // count, rows * (k + 1) // count) for k in range(count)]


def cut(site: Site, count: int, program: Program) -> Cut:
    """Returns a site in so many pieces."""
    return _Cutter(site, count, program).made()


class _Cutter:
    """Makes the steps of one site. Names end in the piece and the number of pieces, so that none is made twice."""

    def __init__(self, site: Site, count: int, program: Program) -> None:
        self.site, self.program = site, program
        self.ranks = len(site.collective.ranks)
        self.bounds = bounds(site.rows, count)
        self.pieces: list[Piece] = []
        self.buffers: dict[str, Buffer] = {}
        self.gone, self.lost = {site.name}, set[str]()
        for product in site.products:
            self.gone.add(product.name)

    def made(self) -> Cut:
        """Returns the pieces."""
        {"gather": self._gather, "scatter": self._scatter, "reduce": self._reduce}[self.site.kind]()
        return Cut(tuple(self.pieces), frozenset(self.gone), self.buffers, frozenset(self.lost))

    def _gather(self) -> None:
        site, step = self.site, self.site.collective
        whole, waited = step.outputs[0], site.wait.outputs[0]
        assert whole is not None and waited is not None
        copied = site.whole or not site.products
        at = site.wait.name
        wanted = site.products[0].name if site.products else at
        self.gone.add(at)
        for number, product in enumerate(site.products):
            self._allocate(product, product.outputs[0], (product.name, wanted), (-1, number))
        if copied:
            self._allocate(step, whole, (at, wanted), (-1, len(site.products)))
        else:
            self.lost |= {whole, waited}
        sent = _rows_of(step.args[0], site.width)
        for k, (first, last) in enumerate(self.bounds):
            size = (self.ranks * (last - first), site.width)
            got, ready = self._buffer(whole, k, size), self._buffer(waited, k, size)
            args = (_from(sent, first, last), *step.args[1:])
            self._add(replace(step, name=self._name(step.name, k), args=args, outputs=(got,)), (step.name,), (k,))
            ref = TensorRef(got, self.buffers[got].layout)
            wait = replace(
                site.wait, name=self._name(site.wait.name, k), args=(ref,), outputs=(ready,), aliases={ready: got}
            )
            self._add(wait, (at, wanted), (k, 0))
            here = (self.ranks, last - first, site.width)
            piece = TensorRef(ready, Layout.contiguous(here))
            for number, product in enumerate(site.products):
                made = _part(_all_of(product.outputs[0], self.program), self.ranks, site.rows, first, last)
                self._add(self._product(product, k, piece, made, first, last), (product.name, wanted), (k, 1, number))
            if copied:
                matrix = TensorRef(whole, Layout.contiguous((self.ranks * site.rows, site.width)))
                to = _part(matrix, self.ranks, site.rows, first, last)
                self._add(self._copy(to, piece, k), (at, wanted), (k, 2))
        if copied:  # what was waited for piece by piece, under the name that the others know
            self._add(site.wait, (at, wanted), (len(self.bounds),))

    def _begin(self) -> tuple[TensorRef, str, str]:
        """Returns what a product makes and the collective sends, the buffer of the whole result, which is allocated,
        and the step in whose place the pieces stand."""
        products, step = self.site.products, self.site.collective
        sent, whole = step.args[0], step.outputs[0]
        assert isinstance(sent, TensorRef) and whole is not None
        at = products[0].name if products else step.name
        self._allocate(step, whole, (at,), (-1,))
        self.lost |= {sent.buffer} if products else set()
        return sent, whole, at

    def _scatter(self) -> None:
        site, step = self.site, self.site.collective
        sent, whole, at = self._begin()
        for k, (first, last) in enumerate(self.bounds):
            rows = last - first
            part = self._buffer(sent.buffer, k, (self.ranks, rows, site.width))
            for product in site.products:
                own = _matrix(product.args[PRODUCTS[product.target]])
                piece = _part(own, self.ranks, site.rows, first, last)
                made = self._product(product, k, piece, None, first, last)
                self._add(replace(made, outputs=(part,)), (at,), (k, 0))
            if not site.products:
                piece = _part(_rows_of(sent, site.width), self.ranks, site.rows, first, last)
                kwargs = {"memory_format": torch.contiguous_format}
                made = self._call(aten.clone.default, (piece,), kwargs, f"{step.name}_sent", k)
                self._add(replace(made, outputs=(part,)), (at,), (k, 0))
            own = TensorRef(part, Layout.contiguous((self.ranks * rows, site.width)))
            out = _from(TensorRef(whole, Layout.contiguous((site.rows, site.width))), first, last)
            scatter = replace(
                step,
                name=self._name(step.name, k),
                target=_ops.reduce_scatter_tensor_out.default,
                args=(own, *step.args[1:]),
                kwargs={"out": out},
                outputs=(),
                mutates=(whole,),
            )
            self._add(scatter, (at,), (k, 1))

    def _reduce(self) -> None:
        site, step = self.site, self.site.collective
        sent, whole, at = self._begin()
        for k, (first, last) in enumerate(self.bounds):
            part = _from(TensorRef(whole, Layout.contiguous((site.rows, site.width))), first, last)
            for product in site.products:
                own = _from(_matrix(product.args[PRODUCTS[product.target]]), first, last)
                given, kwargs = self._operands(product, own, first, last), {**product.kwargs, "out": part}
                made = self._call(WRITING[product.target], given, kwargs, product.name, k, product)
                self._add(replace(made, mutates=(whole,)), (at,), (k, 0))
            if not site.products:
                self._add(self._copy(part, _from(_rows_of(sent, site.width), first, last), k), (at,), (k, 0))
            reduction = replace(
                step,
                name=self._name(step.name, k),
                target=_ops.all_reduce_.default,
                args=(part, *step.args[1:]),
                outputs=(),
                mutates=(whole,),
            )
            self._add(reduction, (at,), (k, 1))

    # ------------------------------------------------------------------------------------------------------- the steps

    def _add(self, step: Step, places: Sequence[str], turn: tuple[int, ...]) -> None:
        """places: where it may stand, and where it should if that is not the same."""
        self.pieces.append(Piece(step, places[0], places[-1], turn))

    def _name(self, name: str, k: int) -> str:
        return f"{name}_{k}of{len(self.bounds)}"

    def _buffer(self, like: str, k: int, size: tuple[int, ...]) -> str:
        """The name of a new buffer."""
        name, old = self._name(like, k), self.program.buffers[like]
        self.buffers[name] = replace(old, name=name, layout=Layout.contiguous(size), kind="temporary")
        return name

    def _call(
        self,
        target: OpOverload,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        name: str,
        k: int,
        like: Extern | None = None,
    ) -> Extern:
        like = like or self.site.collective
        return Extern(self._name(name, k), like.device, target, args, kwargs, origins=like.origins)

    def _allocate(self, like: Extern, name: str | None, places: Sequence[str], turn: tuple[int, ...]) -> None:
        """Memory for a buffer that pieces write."""
        assert name is not None
        buffer = self.program.buffers[name]
        args = (buffer.layout.size, buffer.layout.stride)
        kwargs = {"dtype": buffer.dtype, "device": buffer.device}
        made = self._call(aten.empty_strided.default, args, kwargs, f"{like.name}_memory", 0, like)
        self._add(replace(made, outputs=(name,)), places, turn)

    def _copy(self, to: TensorRef, of: TensorRef, k: int) -> Extern:
        made = self._call(aten.copy_.default, (to, of), {}, f"{self.site.name}_copied", k)
        return replace(made, mutates=(to.buffer,))

    def _product(
        self, product: Extern, k: int, rows: TensorRef, out: TensorRef | None, first: int, last: int
    ) -> Extern:
        """A product of a piece's rows of every rank's part: a batch of matrices. out: where it is written; None for a
        buffer of its own."""
        plain, writing = BATCHED[product.target]
        *bias, _, other = self._operands(product, rows, first, last, self.ranks)
        args = (*bias, rows, other)
        if out is None:
            return self._call(plain, args, product.kwargs, product.name, k, product)
        made = self._call(writing, args, {**product.kwargs, "out": out}, product.name, k, product)
        return replace(made, mutates=(out.buffer,))

    def _operands(
        self, product: Extern, rows: TensorRef, first: int, last: int, batch: int = 0
    ) -> tuple[TensorRef, ...]:
        """A product's arguments for some of its rows. batch: of how many ranks' parts; 0 for one matrix."""
        at = PRODUCTS[product.target]
        *bias, _, other = product.args
        whole = self.program.buffers[product.outputs[0] or ""].layout.size
        found = []
        for each in bias:
            wide = _expanded(each, whole)
            found.append(_part(wide, batch, self.site.rows, first, last) if batch else _from(wide, first, last))
        if batch:
            layout = other.layout
            other = replace(
                other, layout=replace(layout, size=(to_expr(batch), *layout.size), stride=(ZERO, *layout.stride))
            )
        assert len(found) == at
        return (*found, rows, other)


# ------------------------------------------------------------------------------------------------------ views of memory


def _all_of(name: str | None, program: Program) -> TensorRef:
    assert name is not None
    return TensorRef(name, program.buffers[name].layout)


def _matrix(ref: TensorRef) -> TensorRef:
    assert len(ref.layout.size) == 2
    return ref


def _rows_of(ref: TensorRef, width: int) -> TensorRef:
    """A dense tensor as a matrix of rows of so many elements."""
    layout = Layout.contiguous((ref.layout.numel // width, width))
    return replace(ref, layout=replace(layout, offset=ref.layout.offset))


def _from(ref: TensorRef, first: int, last: int) -> TensorRef:
    """Some rows of a matrix."""
    (_, columns), (step, one) = ref.layout.size, ref.layout.stride
    offset = ref.layout.offset + step * first
    return replace(ref, layout=Layout((to_expr(last - first), columns), (step, one), offset))


def _part(ref: TensorRef, ranks: int, rows: int, first: int, last: int) -> TensorRef:
    """Some rows of every rank's part of a matrix, in which these lie one after the other: (ranks, rows, columns)."""
    (_, columns), (step, one) = ref.layout.size, ref.layout.stride
    size: tuple[Expr, ...] = (to_expr(ranks), to_expr(last - first), columns)
    return replace(ref, layout=Layout(size, (step * rows, step, one), ref.layout.offset + step * first))


def _expanded(ref: TensorRef, size: Sequence[Expr]) -> TensorRef:
    """A tensor as `expand` would have it."""
    own = ref.layout
    missing = len(size) - len(own.size)
    strides = [ZERO] * missing + [
        step if extent == wanted else ZERO
        for extent, step, wanted in zip(own.size, own.stride, size[missing:], strict=True)
    ]
    return replace(ref, layout=Layout(tuple(size), tuple(strides), own.offset))
