"""The words of core's that plugins name: passes, kinds of contractions, commands, variables, core's own plugins.

This package knows nothing of litz, so the words stand here too; `tests/core/test_words.py` holds them to core. A word
that is none of these, and that no plugin registers, is an error when plugins are loaded (`litz_plugins.strict`).
"""

from __future__ import annotations

from typing import get_args

from litz_plugins.records import LayoutNeed

CORE_PLUGINS = ("core", "estimate", "cpp", "triton", "meta", "roofline")
OWN_DISTS = {
    "aot": ("litz-aot", "writes and loads packages, which are models compiled ahead of time"),
    "autotune": ("litz-autotune", 'measures what mode="max-autotune" chooses from'),
    "clients": ("litz-clients", "takes litz into vLLM and torchtitan"),
    "collectives": ("litz-collectives", "says what communication costs, and when it runs"),
    "contractions": (
        "litz-contractions",
        "has kernels for products, convolutions and attention, which the library runs without it",
    ),
    "cudagraphs": ("litz-cudagraphs", "records CUDA graphs, and replays them"),
    "layout": ("litz-layout", "chooses memory layouts, channels last where that pays"),
    "memory": ("litz-passes", "keeps a training step within a budget of memory"),
    "numerics": ("litz-numerics", "makes results and gradients eager's bit for bit, where that is asked for"),
    "operators": (
        "litz-operators",
        "has kernels for pooling, resampling and random numbers, which the library runs without it",
    ),
    "passes": ("litz-passes", "has passes that make kernels faster and memory smaller, beyond those of core"),
    "tools": (
        "litz-tools",
        "has the pages of reports, `litz explain`, `litz doctor`, `litz bisect`, and kernels timed alone",
    ),
    "triton_kernels": ("litz-triton-kernels", "launches the Triton kernels that a user wrote, as its own"),
}
"""Litz's own plugins whose dists need not be installed: the dist, and what the plugin does."""


def install(plugin: str) -> str:
    """Returns how to install one of litz's own plugins: no package index has their dists."""
    folder = OWN_DISTS[plugin][0].replace("litz-", "plugins_", 1).replace("-", "_")
    return f"`pip install ./{folder}` in a checkout of litz"


OWN_PLUGINS = tuple(OWN_DISTS)
OWN_COMMANDS = {
    "audit": "collectives",
    "bench-kernels": "tools",
    "bisect": "tools",
    "calibrate": "tools",
    "calibrate-collectives": "collectives",
    "check-plugins": "tools",
    "doctor": "tools",
    "estimate-collective": "collectives",
    "explain": "tools",
    "explain-miss": "tools",
    "fit-collectives": "collectives",
    "memory": "tools",
    "report": "tools",
    "tune": "autotune",
    "watch-plugins": "tools",
}
"""The commands of these plugins, each with its plugin."""

CORE_PASSES = {
    "eliminate_dead_code": "graph",
    "fold_frozen": "graph",
    "separate_reductions": "program",
    "remove_dead_operations": "program",
    "round_shared": "program",
    "split_reductions": "program",
    "inline_pointwise": "program",
    "round_inlined": "program",
    "simplify_bodies": "program",
    "join_segments": "schedule",
    "part_segments": "schedule",
}
"""Core's passes, those included that only some options ask for, and their stages."""

TEMPLATE_KINDS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addmv",
    "int_mm",
    "scaled_mm",
    "scaled_mm_v2",
    "grouped_mm",
    "scaled_grouped_mm",
    "cslt_sparse_mm",
    "convolution",
    "convolution_backward",
    "attention",
    "flex_attention",
    "flex_attention_backward",
)
"""Kinds of the contractions that core's lowerings and those of litz-contractions make (`litz.ir.Template.kind`)."""

LAYOUT_NEEDS = get_args(LayoutNeed)

CORE_COMMANDS = ("cache", "options", "plugins")

CORE_VARIABLES = (
    "CXX",
    "LITZ_BENCHMARK_KERNELS",
    "LITZ_BUILD_PROCESSES",
    "LITZ_BUILD_WORKERS",
    "LITZ_CACHE",
    "LITZ_CACHE_DIR",
    "LITZ_CACHE_LIMIT",
    "LITZ_CACHE_SHARED",
    "LITZ_CALIBRATION",
    "LITZ_CPP_MARCH",
    "LITZ_CPP_QUALIFY",
    "LITZ_CUDA_GRAPHS",
    "LITZ_CXX",
    "LITZ_DEBUG",
    "LITZ_DISABLE_PLUGINS",
    "LITZ_FALLBACK",
    "LITZ_FALLBACK_RANDOM",
    "LITZ_FREEZING",
    "LITZ_FUSION",
    "LITZ_GRAPH_CACHE",
    "LITZ_MAX_AUTOTUNE",
    "LITZ_MAX_AUTOTUNE_GEMM",
    "LITZ_MAX_AUTOTUNE_POINTWISE",
    "LITZ_MAX_FUSION_SIZE",
    "LITZ_MEMORY_PLANNING",
    "LITZ_MEMORY_POOL",
    "LITZ_MODE",
    "LITZ_ON_PLUGIN_ERROR",
    "LITZ_PLUGIN_SECONDS",
    "LITZ_PREFER",
    "LITZ_PROGRESS",
    "LITZ_REPORT_DIR",
    "LITZ_SIZES",
    "LITZ_THREADS",
    "LITZ_TRUST",
    "LITZ_VETO",
)
"""The environment variables of core's options."""
