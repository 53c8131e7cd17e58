"""litz-operators: operators that models of some kinds have, and others do without.

Lowerings of pooling (`max_pooling`, `average_pooling`, `adaptive_pooling`), unpooling, resampling, folding, random
numbers, writes at computed positions (`scatter`), concatenations (`joining`), scans and the gradients of padding;
decompositions of `distances`. Each op becomes loops, which fuse with what stands before and after; without this plugin
each is a call of torch's own kernel. `plugin` has the hooks, `lowerings` and `decompositions` the tables, `window` and
`taps` what pools have in common.
"""
