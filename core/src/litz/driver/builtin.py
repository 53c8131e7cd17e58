"""Core's own plugins: what litz itself puts behind the hooks that plugins use. There is no second way in.

Each is a class of hook implementations, so that `litz plugins` lists it and `LITZ_DISABLE_PLUGINS` can block it. Hooks
import what they use: a process that finds its graphs compiled calls next to none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch._ops import OpOverload

from litz.target import describe_cpu, describe_cuda, describe_meta
from litz_plugins import (
    Choice,
    ChoiceContext,
    CodegenContext,
    Estimate,
    LayoutNeed,
    Pass,
    Target,
    TargetSpec,
    Verdict,
    hookimpl,
)
from litz_plugins.nouns import OptionsView


class Core:
    """Core's plugin of decompositions, lowerings, and the passes of all stages."""

    @hookimpl
    def litz_register_decompositions(self) -> Mapping[OpOverload, Callable[..., Any]]:
        """Returns core's decompositions: op -> the function that computes the op with others."""
        from litz.capture.decompositions import decompositions

        return decompositions({})

    @hookimpl
    def litz_register_lowerings(self) -> Mapping[Any, Callable[..., Any]]:
        """Returns core's lowerings: op -> the function that makes IR of it."""
        from litz.lower import core_lowerings

        return core_lowerings()

    @hookimpl
    def litz_register_layout_needs(self) -> Mapping[OpOverload, LayoutNeed | Mapping[str, LayoutNeed]]:
        """Returns what ops need of the layouts of their operands."""
        from litz.capture.layout_needs import core_layout_needs

        return core_layout_needs()

    @hookimpl
    def litz_register_passes(self, options: OptionsView) -> Sequence[Pass]:
        """Returns core's passes; the folding of weights only with the option `freezing`."""
        from litz.capture.passes import default_graph_passes
        from litz.schedule import core_program_passes, core_schedule_passes

        return (
            *default_graph_passes(bool(options.get("freezing", False))),
            *core_program_passes(),
            *core_schedule_passes(),
        )

    @hookimpl
    def litz_partition(self, joint: Any) -> tuple[Any, Any]:
        """Returns the halves by torch's min-cut partitioner."""
        from litz.capture.torch_api import min_cut

        return min_cut(joint)


class EstimatedChoice:
    """The choice where nothing is measured: what is cheaper by its estimate, beyond doubt; else the library call."""

    @hookimpl
    def litz_select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        """Returns the choice that the estimates surely favour; else the library call, or None if no library call is
        among the choices."""
        from litz.schedule.choices import by_estimate

        return by_estimate(choices, context) or next((choice for choice in choices if choice.kind == "extern"), None)


class EstimatedTime:
    """`litz.cost.Roofline`, which is imported when it is asked."""

    @hookimpl(trylast=True)
    def litz_estimate_runtime(self, operation: Any, target: Target, program: Any) -> Estimate | None:
        """Returns core's estimate of an operation."""
        from litz.cost import Roofline

        return Roofline().litz_estimate_runtime(operation, target, program)


class Device:
    """The plugin of one type of device: each type has its own, so that `LITZ_DISABLE_PLUGINS` can block one."""

    def __init__(self, target: TargetSpec) -> None:
        self.target = target

    @hookimpl
    def litz_register_targets(self, options: OptionsView) -> Sequence[TargetSpec]:
        """Returns the one target that this plugin is for."""
        return [self.target]


def _qualify_cpp(constructs: Collection[str] | None, context: CodegenContext) -> Verdict:
    from litz.targets.cpp.qualify import qualify_target

    return qualify_target(constructs, context)


def builtin_plugins() -> tuple[tuple[str, object], ...]:
    """Returns (name, plugin) of core's own plugins, in the order of registration."""
    from litz.targets.cpp.codegen import CppCodegen
    from litz.targets.meta.codegen import MetaCodegen
    from litz.targets.triton.codegen import TritonCodegen

    cpp = TargetSpec("cpu", describe_cpu, CppCodegen(), qualify=_qualify_cpp)
    triton = TargetSpec("cuda", describe_cuda, TritonCodegen())
    return (
        ("core", Core()),
        ("estimate", EstimatedChoice()),
        ("cpp", Device(cpp)),
        ("triton", Device(triton)),
        ("meta", Device(TargetSpec("meta", describe_meta, MetaCodegen()))),
        ("roofline", EstimatedTime()),
    )
