"""Faults that somebody could build into litz, and the tests that must see each: `make mutants`.

A `.toml` file beside this one lists the mutants of one topic: of a seed document (`000.toml`), or of what no seed asks
about. `rows` reads the lists, `run` applies one mutant at a time to a copy of the tree and runs its tests.
"""
