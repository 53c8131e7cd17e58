"""The hook of litz-passes: the passes, each with its place among core's and its own.

`litz --help` and `litz options` load this module, which therefore loads torch only in hooks that a compile calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from litz_plugins import OptionsView, Pass, hookimpl


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns the types of which the library has no products; else results depend on the graph, the options and the
    target alone, which are in the key."""
    from .processor import without_kernels

    return " ".join(sorted(map(str, without_kernels()))) or None


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the passes of all stages; the folding of affine layers only with the option `freezing`."""
    return (
        *_traced_passes(),
        *_joint_passes(),
        *_graph_passes(bool(options.get("freezing", False))),
        *_program_passes(),
        *_schedule_passes(),
    )


def _traced_passes() -> Iterator[Pass]:
    from .traced.written_layouts import keep_written_layouts
    from .traced.written_windows import keep_around_windows

    yield Pass("keep_written_layouts", "traced", keep_written_layouts)
    yield Pass("keep_around_windows", "traced", keep_around_windows, ("keep_written_layouts",))


def _joint_passes() -> Iterator[Pass]:
    from .joint.cpu_values import rebuild_cpu_values
    from .joint.redundant_copies import remove_redundant_copies
    from .joint.region_inputs import save_region_inputs
    from .joint.region_views import view_regions
    from .joint.saved_memory import save_what_is_read
    from .joint.saved_positions import narrow_positions
    from .joint.saved_views import save_wholes
    from .joint.sizes_alone import read_saved_tensors, read_sizes_alone

    yield Pass("view_regions", "joint", view_regions)
    yield Pass("read_sizes_alone", "joint", read_sizes_alone, ("view_regions",))
    yield Pass("remove_redundant_copies", "joint", remove_redundant_copies, ("read_sizes_alone",))
    yield Pass("save_region_inputs", "joint", save_region_inputs, ("remove_redundant_copies",))
    yield Pass("rebuild_cpu_values", "partitioned", rebuild_cpu_values)
    yield Pass("narrow_positions", "partitioned", narrow_positions, ("rebuild_cpu_values",))
    yield Pass("save_what_is_read", "partitioned", save_what_is_read, ("narrow_positions",))
    yield Pass("save_wholes", "partitioned", save_wholes, ("save_what_is_read",))
    yield Pass("read_saved_tensors", "partitioned", read_saved_tensors, ("save_wholes",))


def _graph_passes(freezing: bool) -> Iterator[Pass]:
    from .graph.bias_gradients import split_bias_gradients
    from .graph.common_subexpressions import eliminate_common_subexpressions
    from .graph.convert_on_device import convert_on_device
    from .graph.fold_affine import fold_affine
    from .graph.fold_constants import fold_constants
    from .graph.no_ops import remove_no_ops
    from .graph.place_constants import place_constants
    from .graph.sum_products import sum_products
    from .graph.sum_scatters import sum_scatters
    from .graph.wide_products import widen_products

    common, dead = "eliminate_common_subexpressions", "eliminate_dead_code"
    yield Pass("fold_constants", "graph", fold_constants, (), (dead,))
    yield Pass("place_constants", "graph", place_constants, ("fold_constants",), (dead,))
    yield Pass("convert_on_device", "graph", convert_on_device, ("place_constants",), (dead,))
    yield Pass("remove_no_ops", "graph", remove_no_ops, ("convert_on_device",), (dead,))
    yield Pass("split_bias_gradients", "graph", split_bias_gradients, ("remove_no_ops",), (dead,))
    yield Pass("widen_products", "graph", widen_products, ("split_bias_gradients",), (dead,))
    yield Pass(common, "graph", eliminate_common_subexpressions, ("widen_products",), (dead,))
    yield Pass("sum_scatters", "graph", sum_scatters, (common,), (dead,))
    yield Pass("sum_products", "graph", sum_products, (dead, "fold_frozen"))
    if freezing:
        yield Pass("fold_affine", "graph", fold_affine, ("fold_frozen",), ("sum_products",))


def _program_passes() -> Iterator[Pass]:
    from .program.columns_first import reduce_columns_first
    from .program.few_values import write_out_few_values
    from .program.join_sums import join_sums
    from .program.lay_out import lay_out_temporaries
    from .program.picked import pick_elements
    from .program.spread import spread_scatters
    from .program.write_in_place import write_in_place

    split, last = "split_reductions", "simplify_bodies"
    yield Pass("write_in_place", "program", write_in_place, ("remove_dead_operations",), (split,))
    yield Pass("join_sums", "program", join_sums, ("write_in_place",), (split,))
    yield Pass("reduce_columns_first", "program", reduce_columns_first, ("inline_pointwise",), (last,))
    yield Pass("lay_out_temporaries", "program", lay_out_temporaries, ("reduce_columns_first",), (last,))
    yield Pass("pick_elements", "program", pick_elements, ("lay_out_temporaries",), (last,))
    yield Pass("write_out_few_values", "program", write_out_few_values, ("pick_elements",), (last,))
    yield Pass("spread_scatters", "program", spread_scatters, ("write_out_few_values",), (last,))


def _schedule_passes() -> Iterator[Pass]:
    from .program.few_values import write_out_few_in_kernels
    from .schedule.beside import run_beside
    from .schedule.one_launch import finish_in_one_launch
    from .schedule.order import order_steps
    from .schedule.reduce_in_place import reduce_in_place

    first = "join_segments"
    yield Pass("finish_in_one_launch", "schedule", finish_in_one_launch, (), (first,))
    yield Pass("write_out_few_in_kernels", "schedule", write_out_few_in_kernels, ("finish_in_one_launch",), (first,))
    yield Pass("order_steps", "schedule", order_steps, ("part_segments",))
    yield Pass("reduce_in_place", "schedule", reduce_in_place, ("order_steps",))
    yield Pass("run_beside", "schedule", run_beside, ("reduce_in_place",))
