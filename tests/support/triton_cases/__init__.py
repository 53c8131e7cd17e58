"""Loops for testing the Triton code generator: every op row and every structure, by name, with inputs.

Each case is a Program of one Loop on CUDA, inputs on the CPU, and the sizes of its symbols. Used three ways: compiled
for sm_90, run in Triton's interpreter (`python -m support.triton_cases SHARD OF`), run on a GPU.
"""

from . import finishing, float8, op_rows, pointwise, reducing, rows, scattering
from .case import CASES, Case, make, output
from .forms import each_form, forms
from .interpret import interpret_cases, interpreted_names

__all__ = [
    "CASES",
    "Case",
    "each_form",
    "finishing",
    "float8",
    "forms",
    "interpret_cases",
    "interpreted_names",
    "make",
    "op_rows",
    "output",
    "pointwise",
    "reducing",
    "rows",
    "scattering",
]
