"""Kernel templates: Triton kernels for contractions, one file for each family.

`gemm.py` says what a matrix product is, `configs.py` which tiles there are and what each is expected to cost,
`kernel.py` writes the kernel's text, `offer.py` turns the best of them into choices.
"""
