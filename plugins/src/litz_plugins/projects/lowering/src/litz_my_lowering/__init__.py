"""A plugin of litz: two operators of its own (`ops`), and how they become kernels (`lowerings`).

from litz_my_lowering.ops import rms_norm, squareplus
"""

from __future__ import annotations

from litz_plugins import hookimpl


@hookimpl
def litz_register_lowerings():
    # Here, since `litz plugins` and the like load the plugin and need no torch.
    import torch

    from . import lowerings, ops

    return {
        torch.ops.my_lowering.squareplus.default: lowerings.squareplus,
        torch.ops.my_lowering.rms_norm.default: lowerings.rms_norm,
    }
