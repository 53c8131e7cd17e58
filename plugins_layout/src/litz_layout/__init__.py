"""litz-layout: channels last where it pays, for the whole of a model.

The plugin's hooks; what they do is in the modules beside this one: `frames` (which dimension is which), `table` and
`costs` (what a layout costs), `problem` and `solve` (the choice), `plan` (what is changed for it), `summary` and
`picture` (what is shown of it), `padding` (of matrix products).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litz_plugins import LayoutPlan, OptionSpec, Pass, TargetOf, hookimpl
from litz_plugins.nouns import Graph, OptionsView


@hookimpl
def litz_register_options() -> Sequence[OptionSpec]:
    """Returns the options whose names begin with `layout.`."""
    return [
        OptionSpec("enable", bool, True, "choose layouts for graphs with convolutions"),
        OptionSpec("force", bool, False, "channels last for every convolution, whatever it costs; to test and compare"),
        OptionSpec("keep_output_strides", bool, True, "outputs have eager's strides; off: whatever is cheapest"),
        OptionSpec(
            "measurements",
            Path,
            None,
            "file of measured convolutions (python -m litz_layout.measured)",
            check=Path.stat,
            accepts="the path of a file that is there",
        ),
        OptionSpec("pad", str, "auto", "pad matrix products for tensor cores", choices=("auto", "always", "never")),
    ]


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns the digest of the file of measurements, as its content decides layouts."""
    path = options["layout.measurements"]
    return Path(path).read_text(encoding="utf-8") if path is not None and Path(path).is_file() else None


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the pass that pads matrix products, unless the option `layout.pad` is "never"."""
    if options["layout.pad"] == "never":
        return []
    from litz_layout.padding import pad_contractions

    return [Pass("pad_contractions", "graph", pad_contractions, after=("eliminate_dead_code", "sum_products?"))]


@hookimpl
def litz_select_layout(
    graph: Graph, options: OptionsView, needs: Any, target_of: TargetOf, lowered: frozenset[Any]
) -> LayoutPlan | None:
    """Returns the plan of layouts for a graph with convolutions, None for other graphs or with `layout.enable` off."""
    if not options["layout.enable"]:
        return None
    from litz_layout.roles import CONVOLUTIONS  # this loads torch's ops, which listing plugins need not

    calls = [node for node in graph.nodes if node.target in CONVOLUTIONS]
    if not calls:
        return None
    from litz_layout.choose import choose_layouts

    device = calls[0].all_input_nodes[0].meta["val"].device
    return choose_layouts(graph, target_of(device), options, needs, lowered)
