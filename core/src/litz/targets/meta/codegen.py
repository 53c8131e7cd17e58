"""Kernels for the meta device: tensors without memory. In: a KernelPlan. Out: a source without text, and a launch that
does nothing.

A graph of meta tensors has sizes, strides and dtypes as its only results, and the wrapper makes those when it
allocates; so a model can be compiled and called on shapes alone, as eager can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from litz_plugins import CodegenContext, KernelSource

if TYPE_CHECKING:
    from litz.codegen.kernel_plan import KernelPlan


class MetaCodegen:
    """The code generator for the meta device."""

    language = "none"
    loads_from_source = True

    def generate(self, kernel: KernelPlan, context: CodegenContext) -> KernelSource:
        """Returns a source without arguments: tensors on the meta device have no addresses."""
        return KernelSource(kernel.name, self.language, "", kernel.name)

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., Any]:
        """Returns a launch that does nothing."""
        return lambda: None
