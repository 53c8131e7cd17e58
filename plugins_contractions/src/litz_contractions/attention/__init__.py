"""Kernels for `litz.ir.Attention`."""
