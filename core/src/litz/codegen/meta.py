"""Kernels for the meta device: tensors without memory. In: a Kernel. Out: a source without text, and a launch that does
nothing.

A graph of meta tensors has sizes, strides and dtypes as its only results, and the wrapper makes those when it
allocates; so a model can be compiled and called on shapes alone, as eager can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litz.schedule.schedule import Kernel
from litz_plugins import CodegenContext, KernelSource


class MetaCodegen:
    """The code generator for the meta device."""

    language = "none"

    def generate(self, kernel: Kernel, context: CodegenContext) -> KernelSource:
        """A source that takes no arguments, as there are no addresses."""
        return KernelSource(kernel.name, self.language, "", kernel.name)

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., Any]:
        return lambda: None
