"""C++ kernels for the CPU: from a Kernel to source text."""

from .codegen import CppCodegen

__all__ = ["CppCodegen"]
