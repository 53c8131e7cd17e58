"""TorchInductor's names of settings, and what litz has in their place: for docs/from_inductor.md and error messages.

In: a name that litz does not have. Out: what to write instead, or why there is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Equivalent:
    """A row. names: of `torch._inductor.config`. ours: litz's option or mode, as Markdown; "none" where litz has no
    switch. note: how the two differ, or why there is no switch."""

    names: tuple[str, ...]
    ours: str
    note: str = ""


EQUIVALENTS = (
    Equivalent(
        ("max_autotune",),
        '`max_autotune`, or `mode="max-autotune-no-cudagraphs"`',
        "with litz-autotune, which measures contractions, decisions and kernels",
    ),
    Equivalent(("max_autotune_gemm",), "`max_autotune_gemm`", "matrix products only"),
    Equivalent(
        ("max_autotune_pointwise", "coordinate_descent_tuning"),
        "`max_autotune_pointwise`",
        "the tiles and warps of generated kernels, by a local search",
    ),
    Equivalent(
        ("max_autotune_gemm_backends", "max_autotune_conv_backends"),
        "`autotune.backends`",
        '"ATEN" is `library`, "TRITON" is `triton`; one list for products and convolutions',
    ),
    Equivalent(
        ("autotune_fallback_to_aten",),
        "`library` in `autotune.backends`",
        "without it, what no kernel can do is a `NoValidChoicesError`",
    ),
    Equivalent(
        ("autotune_in_subproc", "autotune_multi_device"),
        "`autotune.in_subprocess`, `autotune.multi_device`",
        "the first is on by default",
    ),
    Equivalent(("max_autotune_subproc_result_timeout_seconds",), "`autotune.timeout`"),
    Equivalent(
        ("autotune_local_cache", "autotune_remote_cache"),
        "`autotune.local_cache`, `autotune.remote_cache`",
        "the second is a URL",
    ),
    Equivalent(("search_autotune_cache",), "`autotune.search_cache`", "without tuning, use what was measured before"),
    Equivalent(
        ("compile_threads",),
        "`threads`, `build_processes`",
        "kernels to build at a time, those that compete in tuning too; processes that compile Triton kernels",
    ),
    Equivalent(
        ("epilogue_fusion",), "`autotune.fusion`", "producers of operands, second products and reductions of rows too"
    ),
    Equivalent(
        ("benchmark_epilogue_fusion",),
        "none",
        "always so: a kernel that does a product's users is measured against the library call with kernels for them",
    ),
    Equivalent(("max_fusion_size",), "`max_fusion_size`", "counts nodes of the graph, inlined ones too"),
    Equivalent(
        ("benchmark_kernel",),
        "`benchmark_kernels`, and `litz bench-kernels`",
        "with litz-tools; the text of a kernel stays the same; what a launch needs is in a file beside it",
    ),
    Equivalent(("freezing",), "`freezing`"),
    Equivalent(
        ("layout_optimization", "force_layout_optimization"), "`layout.enable`, `layout.force`", "with litz-layout"
    ),
    Equivalent(("keep_output_stride",), "`layout.keep_output_strides`"),
    Equivalent(("shape_padding", "force_shape_pad"), '`layout.pad`: "auto" or "never", "always"'),
    Equivalent(("fallback_random",), "`fallback_random`"),
    Equivalent(
        ("triton.cudagraphs", "triton.cudagraph_trees"),
        '`cuda_graphs`, or `mode="reduce-overhead"`',
        "with litz-cudagraphs",
    ),
    Equivalent(("fx_graph_cache",), "`graph_cache`", "on by default"),
    Equivalent(("fx_graph_remote_cache",), "`cache_shared`", "folders that machines share; a plugin can use a server"),
    Equivalent(("force_disable_caches",), "`cache` set to False"),
    Equivalent(("trace.enabled",), "`report_dir`", "names a folder; each graph's report goes there"),
    Equivalent(("cpp.cxx",), "`cpp.compiler`", "one compiler, not a list"),
    Equivalent(("cpp.threads",), "none", "`torch.set_num_threads` counts"),
    Equivalent(("cpp_wrapper",), "none", "litz's wrapper is Python; a native module launches the kernels"),
    Equivalent(
        ("reorder_for_compute_comm_overlap", "bucket_all_gathers_fx"),
        "`collectives.passes`",
        "with litz-collectives, whose pass `overlap` moves and joins collectives",
    ),
    Equivalent(
        (
            "pre_grad_custom_pass",
            "joint_custom_pre_pass",
            "joint_custom_post_pass",
            "post_grad_custom_pre_pass",
            "post_grad_custom_post_pass",
        ),
        "none",
        "a plugin registers any number of passes, and says what each comes before and after",
    ),
    Equivalent(
        ("pattern_matcher", "split_cat_fx_passes"),
        "`veto`",
        "leaves out single decisions, by the keys that `litz explain -v` prints",
    ),
    Equivalent(
        ("triton.unique_kernel_names",), "none", "kernels are named for what they compute; profiles name the module too"
    ),
    Equivalent(("emulate_precision_casts",), "none", "a half value rounds in between where several operations read it"),
    Equivalent(
        ("size_asserts", "nan_asserts"), "none", "inputs are always checked; `debug` checks the compiler's stages"
    ),
)
"""Every setting of TorchInductor's that litz's users may look for."""


def in_litz(name: str) -> str:
    """Returns words, for an error message, on litz's counterpart of a TorchInductor setting; '' if unknown."""
    row = next((row for row in EQUIVALENTS if name in row.names), None)
    if row is None:
        return ""
    ours, note = row.ours.replace("`", ""), row.note.replace("`", "")
    if ours == "none":
        return f"TorchInductor's {name} has no counterpart in litz: {note}"
    return f"TorchInductor's {name} is litz's {ours}" + (f" ({note})" if note else "")
