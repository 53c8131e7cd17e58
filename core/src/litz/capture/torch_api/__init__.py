"""The one place that touches private torch APIs: a new torch version is this folder's work.

Small named functions over dynamo, AOTAutograd, ShapeEnv, fake tensors and the dispatcher. Written for torch 2.11 to
2.13; where they differ, the function says so. Nothing here imports `torch._inductor` (some of torch's own modules do).
"""

# ruff: noqa: F401 (what is imported here is what the folder has to offer)

from .aot import (
    aot_compile,
    counts_from_storage,
    donate_nothing,
    flatten_inputs,
    flatten_outputs,
    is_tangent,
    is_wrapper,
    lazy_bits,
    overlapping,
    rebuilt_outputs,
    report_output_strides,
    reset_with_dynamo,
    returns_flat_tuple,
    saved_tensor_hooks_active,
    static_positions,
    synthetic_base,
    traced_instead,
    unwatched,
    user_output_count,
    with_lazy_bits,
    written_inputs,
)
from .aot_cache import found_by, guards_left_out, is_saved_by_torch, keep_as, why_not_kept
from .aot_cache_key import captured_devices, current_shape_env, devices_in, rank
from .asserts import (
    asserted,
    assertion_messages,
    bindings_of,
    depends_on_data,
    first_names,
    implied_by_ranges,
    is_data_dependent,
    may_leave_64_bits,
    replaced,
    runtime_asserts,
    same_condition,
    sizes_taken_for_known,
    traced_expr,
    unclaimed,
)
from .custom_ops import defining_module, is_custom
from .dynamo import as_captured, compile_label, disable_dynamo, is_restart
from .fake import (
    fake_mode_around,
    fake_mode_of,
    hint_of,
    hint_or_none,
    is_fake,
    make_fake,
    missing_value,
    real_mode,
)
from .frames import frame_of
from .later import Later
from .modes import is_users_trace, seen_by_modes
from .node_parts import metas_of, parts_of, values_of
from .operators import (
    aliased_argument,
    alone_in_memory,
    copied,
    core_decompositions,
    decomposition_registry,
    default_store,
    elementwise_collectives,
    fake_result,
    group_ranks,
    held_by_backward,
    is_collective,
    is_composite,
    is_higher_order,
    is_pure,
    is_torchs,
    is_uninitialized,
    make_graph_module,
    memory_of,
    memory_owner,
    memory_owners,
    norm_of_dims_from_the_front,
    owners_of_several,
    share_memory,
    trace,
    whole_where_undecided,
    written_arguments,
)
from .origins import gradient_positions, input_position, origin_of, placeholder_names, tangent_position, user_name
from .partition import min_cut, with_kept_values
from .random import is_random, is_random_draw
from .regions import Keeps, inline_regions, region_calls, work_of
from .rules import RESAMPLING, compile_lock, faked_by
from .shapes import (
    backed_values,
    decide_again,
    elementwise_order,
    evaluate_statically,
    evaluate_with_guard,
    facts_of,
    guard_count,
    guards_since,
    hangs_on_data,
    known,
    same_layout,
    same_statically,
    shape_env_of,
    size_of_text,
    size_symbols,
    suggested_format,
    sympy_of,
    value_ranges,
    without_guards,
)
