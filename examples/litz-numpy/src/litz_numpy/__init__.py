"""A target of litz out of tree: kernels for the CPU as NumPy text. docs/targets.md walks through it."""

from __future__ import annotations

from dataclasses import replace

from litz.target import cpu_target
from litz_plugins import TargetSpec, hookimpl

from .codegen import NumpyCodegen


@hookimpl
def litz_register_targets(options):
    return [TargetSpec("cpu", describe, NumpyCodegen())]


def describe(device, options):
    """One thread, and 20 µs of Python around each kernel."""
    return replace(cpu_target(1), source="litz-numpy's guess", launch_us=20.0)
