"""Tools that test litz, its plugins and its targets: a dist of its own, litz-testing.

conformance   PyTorch's own operator samples, compiled, against eager
fuzz          random programs, compiled, against eager
compilers     every C++ compiler of the machine, for every processor that it can be
coverage      how each op of torch's core set is compiled
reference     the pages of docs/plugins that are made from the code

Each runs as `python -m litz_testing.NAME`.
"""
