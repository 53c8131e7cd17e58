"""The differential fuzzer: random programs, compiled by litz, against eager.

python -m litz_testing.fuzz --seed 1 --programs 1000

inputs.py     InputSpec: a tensor of some shape, strides, dtype and values
program.py    FuzzProgram: inputs, statements and outputs; its text as a function or a stand-alone script
reference.py  what a program means: eager, float64 and float64 with noise, statement by statement
operations.py what a statement may be; views.py, pointwise.py, reducing.py, contracting.py, ... by kind
regions.py    the functions with a graph of their own that statements of nesting.py call
generate.py   a random program
cpp_batch.py  the C++ kernels of many programs, built at once
execute.py    a program through AOTAutograd and litz, without dynamo
owning.py     the reductions of its Loops nested
together.py   a program in several threads at once, its results held (holders.py) while later calls run
compare.py    are these outputs as right as eager's?
check.py      one batch of programs, from generating to comparing
shrink.py     a failing program made small
run.py        many batches in worker processes, and the record of them
"""

from __future__ import annotations

from .operations import load_table
from .program import FuzzProgram, Statement

load_table()  # in one order, whichever module of the fuzzer is imported first: a label is one program in every process

__all__ = ["FuzzProgram", "Statement"]
