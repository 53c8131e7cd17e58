"""Triton for CUDA devices: from a fused loop to a module with one `@triton.jit` function, to its launch."""
