"""A plugin of litz: `torch.bucketize` with few boundaries as comparisons, which fuse with what is around them."""

from __future__ import annotations

from litz_plugins import hookimpl


@hookimpl
def litz_register_decompositions():
    # Here, since `litz plugins` and the like load the plugin and need no torch.
    import torch

    from .bucketize import bucketize

    return {torch.ops.aten.bucketize.Tensor: bucketize}
