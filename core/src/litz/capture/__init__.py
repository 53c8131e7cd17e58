"""Capture: a dynamo graph goes in, functional ATen graphs (`Graph`) come out.

`aot.compile_with_aot` drives AOTAutograd; `decompositions` says which ops are broken up; `passes` simplifies a Graph;
`torch_api` is the only module of litz that touches private torch APIs.
"""
