"""The hooks of litz-numerics. With its options at their defaults they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from litz_plugins import Entry, EntryFacts, LayoutPlan, OptionSpec, OptionsView, Pass, hookimpl
from litz_plugins.nouns import Graph, JointGraph

MODES = ("default", "rounded", "strict")


def mode_of(options: OptionsView) -> str:
    """Returns whose numbers a compile gives, one of `MODES`."""
    return str(options.get("numerics.mode", "default"))


def is_invariant(options: OptionsView) -> bool:
    """Returns whether results of a row are not to depend on the batch."""
    return bool(options.get("numerics.batch_invariant", False))


def is_deterministic(options: OptionsView) -> bool:
    """Returns whether each run is to have the same bits."""
    return bool(options.get("numerics.deterministic", False))


@hookimpl
def litz_register_options() -> Sequence[OptionSpec]:
    """Returns the options of this dist. Strict mode draws random numbers as eager does, and what is deterministic
    measures nothing."""
    text = (
        'whose numbers: litz\'s own ("default"), with half values rounded where eager rounds them ("rounded"), or bit '
        'for bit eager\'s ("strict")'
    )
    rows = "results of a row do not depend on the other rows, the batch or padding"
    repeats = "runs, processes and compiles have the same bits, as under torch.use_deterministic_algorithms"
    measured = dict.fromkeys(("max_autotune", "max_autotune_gemm", "max_autotune_pointwise"), False)
    return [
        OptionSpec("mode", str, "default", text, MODES, implies={"strict": {"fallback_random": True}}),
        OptionSpec("batch_invariant", bool, False, rows),
        OptionSpec("deterministic", bool, False, repeats, (False, True), implies={True: measured}),
    ]


@hookimpl
def litz_narrow(kind: str, registered: Mapping[Any, Any], options: OptionsView) -> Mapping[Any, Any] | None:
    """Returns what a mode uses of what is registered: in strict mode what the table of exact ops has, in mode "rounded"
    all but what rounds elsewhere than eager."""
    narrowed = [table[kind] for table in _tables(options) if kind in table]
    return reduce(lambda left, narrow: narrow(left), narrowed, registered) if narrowed else None


def _tables(options: OptionsView) -> Iterator[Mapping[str, Callable[[Mapping[Any, Any]], Mapping[Any, Any]]]]:
    """The tables of what the options use, first the mode's."""
    mode = mode_of(options)
    if mode == "strict":
        from . import rules

        yield rules.NARROWED
    if mode == "rounded":
        from . import rounded

        yield rounded.NARROWED
    if is_invariant(options):
        from . import invariant

        yield invariant.NARROWED
    if is_deterministic(options):
        from . import deterministic

        yield deterministic.NARROWED


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the passes of the mode: each rounding that eager makes, and in strict mode what is left to torch on
    record."""
    mode = mode_of(options)
    if is_deterministic(options):
        from .deterministic import check

        check(options)
    if mode == "default" and not is_invariant(options):
        return ()
    if mode == "strict" and is_invariant(options):
        from .errors import NumbersError

        raise NumbersError(
            "numerics.batch_invariant contradicts numerics.mode='strict': eager's rows depend on the batch",
            where="options=",
            todo="give one of the two",
        )
    from .left import name_torchs_kernels
    from .rounding import round_each

    passes = [Pass("round_each", "program", round_each, ("round_shared",), ("split_reductions",))]
    if is_invariant(options):
        from .fixed import fix_orders
        from .invariant import name_dependent_kernels
        from .reduced import reduce_in_order

        passes.append(Pass("fix_orders", "graph", fix_orders, (), ("eliminate_dead_code",)))
        passes.append(Pass("reduce_in_order", "program", reduce_in_order, ("round_each",), ("simplify_bodies",)))
        passes.append(Pass("name_dependent_kernels", "program", name_dependent_kernels, ("simplify_bodies",)))
    if mode == "strict":
        passes.append(Pass("name_torchs_kernels", "program", name_torchs_kernels, ("simplify_bodies",)))
    return passes


@hookimpl(tryfirst=True)
def litz_select_layout(graph: Graph, options: OptionsView) -> LayoutPlan | None:
    """Returns a plan that changes no layout, as what a library call returns may depend on its operands' strides."""
    return LayoutPlan({}) if mode_of(options) == "strict" or is_invariant(options) else None


@hookimpl(tryfirst=True)
def litz_partition(joint: JointGraph, options: OptionsView) -> tuple[Any, Any] | None:
    """Returns the halves with all that the backward reads saved: to compute it again would take torch's kernels, which
    fuse with nothing."""
    if mode_of(options) != "strict":
        return None
    from functorch.compile import default_partition

    return default_partition(joint.module, joint.inputs, num_fwd_outputs=joint.forward_outputs, **joint.more)


@hookimpl
def litz_wrap_entry(entry: Entry, facts: EntryFacts, options: OptionsView) -> Entry | None:
    """Returns the entry in torch's deterministic mode, where the option asks for that."""
    if not is_deterministic(options):
        return None
    from .deterministic import repeating

    return repeating(entry)


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns None: results depend on the graph, the options and the target alone, which are in the key."""
    return None
