"""The driver: what runs the stages of a compile, and what happens around them. `litz.pipeline` is its one page.

In: a Graph, options and plugins. Out: a CompiledGraph, from the stages or from the graph cache.
"""
