"""A plugin of litz: core's kernels for the CPU, which count their launches and their time.

from litz_my_target import CODEGEN
print(CODEGEN.table())
"""

from __future__ import annotations

from dataclasses import replace

from litz_plugins import Exporter, TargetSpec, hookimpl

from .codegen import TimedCodegen

CODEGEN = TimedCodegen()


@hookimpl
def litz_register_targets(options):
    """Registers a target that takes the place of core's target for the CPU."""
    return [TargetSpec("cpu", describe, CODEGEN, qualify=qualify)]


@hookimpl
def litz_select_exporter(target):
    """Has litz-aot put these kernels into packages: their text is core's. What a package launches is not counted."""
    return Exporter("litz_aot.cpp_kernels") if target.plugin == "my_target" else None


def describe(device, options):
    """Returns core's description of the processor, with 1 µs more a launch, which goes through a Python function."""
    from litz.target import describe_cpu  # here, as `litz plugins` and the like need no compiler

    core = describe_cpu(device, options)
    return replace(core, launch_us=core.launch_us + 1.0, source=f"{core.source}, launches timed")


def qualify(constructs, context):
    """Tries the C++ compiler as core does, before its kernels are trusted: the text is core's."""
    from litz.targets.cpp.qualify import qualify_target

    return qualify_target(constructs, context)
