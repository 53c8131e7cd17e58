"""Conformance: every operator that torch.testing describes (op_db), compiled, against eager.

python -m litz_testing.conformance                 # all operators in float32
python -m litz_testing.conformance --help

cases.py     which operators, dtypes and samples: a list of `Job`s, each of some `Case`s
call.py      a sample as a function of its tensors
check.py     one case: eager, compiled, forward and backward, compared
compare.py   what counts as equal
workers.py   processes that run jobs, with time-outs: a crash is a failed case
results.py   the outcomes as JSON and as a table
known.py     failures that are expected, each with its reason
"""
