"""Meta tensors, which have no memory: nothing is generated, and nothing runs."""
