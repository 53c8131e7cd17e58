"""Library calls that do a product's user too. In: a contraction and where it stands. Out: choices.

cuBLASLt adds a bias and takes the relu on a product's way out; torch offers it as `aten._addmm_activation`. (Its gelu
is the tanh approximation, which is not what torch's gelu computes unless asked.)
"""

from __future__ import annotations

import torch

from litz.cost.contractions import argument_names
from litz.ir import Extern, Loop, Node, Program, Template, TensorRef
from litz.schedule.choices import Replacement, needed_outside
from litz_plugins import Choice

from ..epilogue import stands

_ACTIVATION = torch.ops.aten._addmm_activation.default


def offer_library(template: Template, program: Program) -> list[Choice]:
    """addmm with relu as one call, where that is what is computed."""
    if template.kind != "addmm" or template.kwargs or template.outputs[0] is None:
        return []
    bias = argument_names(template)["self"]
    if not isinstance(bias, TensorRef) or len(bias.layout.size) != 1 or bias.layout.stride[0] != 1:
        return []  # only a bias of one row is added on the way out
    users = [op for op in program.operations if template.outputs[0] in op.reads]
    if len(users) != 1 or not isinstance(users[0], Loop) or not _is_relu(users[0], program, template.outputs[0]):
        return []
    (user,) = users
    if needed_outside(program, {template.name, user.name}) != set(user.writes):
        return []  # someone needs the product itself
    if not stands(program, template, [user.name]):
        return []
    call = Extern(
        template.name,
        template.device,
        _ACTIVATION,
        template.args,
        outputs=user.writes,
        origins=(*template.origins, *user.origins),
    )
    return [Choice("cublaslt addmm + relu", "template", Replacement((call,), absorbs=(user.name,)))]


def _is_relu(loop: Loop, program: Program, name: str) -> bool:
    """Does the loop do nothing but store max(x, 0) of a matrix, each element in its place?"""
    if len(loop.stores) != 1 or loop.is_reduction:
        return False
    (store,) = loop.stores
    read, written = program.buffers[name], program.buffers[store.buffer]
    if read.layout != written.layout or read.dtype != written.dtype or not read.layout.is_contiguous():
        return False
    value = _unrounded(store.value)
    if store.mode != "set" or store.mask is not None or store.indirect or value.op != "maximum":
        return False
    loads = [arg for arg in map(_unrounded, value.args) if arg.op == "load"]
    zeros = [arg for arg in map(_unrounded, value.args) if arg.op == "const" and arg.attrs[0] == 0]
    return (
        len(loads) == 1
        and len(zeros) == 1
        and loads[0].buffer == name
        and loads[0].index == store.index
        and loads[0].mask is None
    )


def _unrounded(node: Node) -> Node:
    while node.op == "cast" and node.dtype.is_floating_point and node.args[0].dtype.is_floating_point:
        node = node.args[0]
    return node
