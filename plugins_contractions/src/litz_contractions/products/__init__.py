"""Triton kernels for products and convolutions.

`gemm.py` says what a matrix product is, `configs.py` which tiles there are and what each is expected to cost,
`choice.py` turns the best of them into choices, `kernel.py` writes the text of those that are needed.
"""
