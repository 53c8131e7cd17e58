"""Names for litz's own types in the hooks' signatures.

This package is importable without litz (and without torch), so that a tool can read plugins without loading a compiler.
At run time the names are therefore ``Any``; each says which class of litz it stands for.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

TracedGraph: TypeAlias = Any  # litz.capture.joint.TracedGraph: what dynamo traced, before AOTAutograd
JointGraph: TypeAlias = Any  # litz.capture.joint.JointGraph: forward and backward in one, before it is partitioned
Halves: TypeAlias = Any  # litz.capture.joint.Halves: a forward and a backward
Graph: TypeAlias = Any  # litz.capture.Graph: a functional ATen FX graph with fake-tensor metadata
Program: TypeAlias = Any  # litz.ir.Program: buffers and operations in data-flow order
Schedule: TypeAlias = Any  # litz.schedule.Schedule: ordered kernels and calls
Operation: TypeAlias = Any  # litz.ir Loop, Extern, Template, Collective or Wait; or a fused kernel of a Schedule
KernelPlan: TypeAlias = Any  # litz.codegen.kernel_plan.KernelPlan: a kernel of a Schedule, before it is tiled
Report: TypeAlias = Any  # litz.report.CompileReport
OpOverload: TypeAlias = Any  # torch._ops.OpOverload, e.g. torch.ops.aten.add.Tensor
Noun: TypeAlias = Any  # one of TracedGraph, JointGraph, Halves, Graph, Program, Schedule


class OptionsView(Protocol):
    """The options as a plugin sees them: ``litz.options.Options``, or the test kit's stand-in.

    Core's options are attributes (``options.cuda_graphs``, ``options.cpp_march``); a plugin's are read by their
    namespaced name (``options["plugin.option"]``). Core's can be read by name as well.
    """

    def __getitem__(self, name: str) -> Any:
        """The value of an option; KeyError when there is none of that name."""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of an option, or ``default`` when no option has the name."""
