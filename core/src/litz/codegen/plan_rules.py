"""Is a KernelPlan legal? Each rule is a function from a plan to its complaints; `verify_plan` runs them all.

In debug mode plans are verified before code is generated for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from litz.ir import Loop
from litz.ir.build import placeholders_in
from litz.ir.index import ONE, Symbol, is_placeholder
from litz.ir.stages import Stages

from .kernel_plan import KernelPlan
from .named_sizes import printable

Rule = Callable[[KernelPlan], Iterator[str]]


def _flat(plan: KernelPlan) -> Iterator[str]:
    """Every access has one index, its offset, with a value for each placeholder in it."""
    for access in plan.accesses:
        if len(access.index) != 1:
            yield f"{access} has {len(access.index)} indices"
        if placeholders_in(access.index) > len(access.site.indirect):
            yield f"{access} has a placeholder without a value"


def _collapsed(plan: KernelPlan) -> Iterator[str]:
    for loop in plan.loops:
        kept = loop.reduction_ranges[1:] if len(loop.reduction_ranges) == 1 else loop.reduction_ranges
        yield from (f"{loop.name} walks the range {r}" for r in (*loop.ranges, *kept) if r.size == ONE)


def _arguments(plan: KernelPlan) -> Iterator[str]:
    """The buffers are those that the loops touch, the sizes those that they name."""
    touched = {access.buffer for access in plan.accesses}
    yield from (f"{name} is no argument" for name in sorted(touched - plan.buffers.keys()))
    yield from (f"nothing touches the argument {name}" for name in sorted(plan.buffers.keys() - touched))
    yield from (f"the size {size} has no argument" for size in sorted(_sizes(plan) - {*plan.sizes}, key=str))
    for name in (*plan.starts, *plan.unaligned):
        if name not in plan.buffers:
            yield f"{name} is said to start somewhere, and is no argument"


def _sizes(plan: KernelPlan) -> set[Symbol]:
    return {symbol for loop in plan.loops for symbol in loop.free_symbols if not is_placeholder(symbol)}


def _texts(plan: KernelPlan) -> Iterator[str]:
    """Every expression that the host does not compute has a text in a kernel."""
    for loop in plan.loops:
        own = frozenset(loop.extents)
        yield from (f"{loop.name}: no text for {expr}" for expr in loop.expressions if not printable(expr, own))


def _inside(plan: KernelPlan) -> Iterator[str]:
    for access in plan.accesses:
        first = access.offset.as_coeff_Add()[0]
        start = plan.starts.get(access.buffer, 0)
        if start and not (first.is_Integer and first >= start):
            yield f"{access} lies before the start of its buffer, {start}"


def _in_place(plan: KernelPlan) -> Iterator[str]:
    loaded = {access.buffer for access in plan.accesses if not access.is_store}
    stored = {access.buffer for access in plan.accesses if access.is_store}
    for new, old in plan.inplace.items():
        if new not in stored or old not in loaded:
            yield f"{new} is stored in the memory of {old}: one is not stored, or the other not loaded"


def _walks(plan: KernelPlan) -> Iterator[str]:
    """Each reduction and each store is made once, and after what it needs."""
    for loop in plan.loops:
        for stages in (plan.stages(loop), plan.stages(loop, one_walk=True)):
            yield from _made_once(loop, stages)
            for number, walk in enumerate(stages.walks):
                for node in walk.reduces:
                    late = [arg for arg in node.args if stages.depths[arg] > number]
                    if late and node not in stages.together:
                        yield f"{loop.name}: walk {number} computes {node!r}, which needs a later one"
                for store in walk.stores:
                    if any(stages.depths[root] > number for root in store.roots):
                        yield f"{loop.name}: walk {number} stores {store.buffer}, which needs a later one"


def _made_once(loop: Loop, stages: Stages) -> Iterator[str]:
    reduces = Counter(node for walk in stages.walks for node in walk.reduces)
    reduces.subtract(node for node in loop.nodes if node.op == "reduce")
    stores = Counter(id(store) for store in (*(s for walk in stages.walks for s in walk.stores), *stages.final))
    stores.subtract(id(store) for store in loop.stores)
    if any(reduces.values()) or any(stores.values()):
        yield f"{loop.name}: a reduction or a store is on no walk, or on several"


def _combining(plan: KernelPlan) -> Iterator[str]:
    """The loops that combine have the output ranges of the first, its pieces aside."""
    first, *others = plan.loops
    wanted = set(first.ranges) - set(plan.pieces)
    yield from (f"{loop.name} has other output ranges than {first.name}" for loop in others if {*loop.ranges} != wanted)
    if plan.pieces and not others:
        yield "there are pieces, and nothing combines them"


RULES: tuple[Rule, ...] = (_flat, _collapsed, _arguments, _texts, _inside, _in_place, _walks, _combining)


def verify_plan(plan: KernelPlan) -> Iterator[str]:
    """Yields a complaint for each broken rule. The rules after the first expect flat loops, and are checked only if the
    first finds nothing."""
    flat, *others = RULES
    complaints = list(flat(plan))
    yield from complaints or (complaint for rule in others for complaint in rule(plan))
