"""litz-cudagraphs: a compiled graph recorded as a CUDA graph, and replayed as one launch.

`plugin` has the hook. `recordings` decides when a graph is recorded, copied into and replayed; `lent` has the outputs
that callers get, `shared_memory` the memory that recordings share, `ceding` what a forward hands to its backward.
`torch_memory` has the private functions of torch that these need.
"""
