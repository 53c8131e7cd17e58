"""C++ for processors: from a Kernel to source text, to a shared library that a compiler was trusted with."""
