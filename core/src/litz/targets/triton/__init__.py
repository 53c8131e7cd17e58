"""Triton kernels for CUDA devices: from a fused loop to the text of a module with one `@triton.jit` function."""

from .codegen import TritonCodegen

__all__ = ["TritonCodegen"]
