"""Library calls that do a product's users too. In: a contraction and where it stands. Out: choices.

cuBLASLt adds a bias and takes the relu, or the gelu by its tanh form, on a product's way out; torch offers it as
`aten._addmm_activation`. What a user computes is recognised by its values, whatever it was written as: the loop is
evaluated in float64 at some places. The call rounds once where the loop rounds twice or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sympy
import torch
import torch.nn.functional as F

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Extern, Loop, Node, Program, Template, TensorRef
from litz.ir.index import ZERO, Expr, product
from litz.ir.ops import OPS
from litz.schedule.choices import Replacement, needed_outside
from litz_plugins import Choice, ChoiceContext, Estimate

from ..epilogue import shared_users, stands

_ACTIVATION = torch.ops.aten._addmm_activation.default
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Activation:
    """meaning: of the call's last step. arguments: what the call takes for it. us: that it adds to a call for a million
    elements, at most, by compute capability times ten. dtypes: for which it is as exact as eager's; None for all."""

    name: str
    meaning: Callable[[torch.Tensor], torch.Tensor]
    arguments: Mapping[str, bool]
    us: Mapping[int, float]
    dtypes: tuple[torch.dtype, ...] | None = None


ACTIVATIONS = (
    Activation("relu", torch.relu, {}, {90: 0.1}),
    Activation("gelu", lambda x: F.gelu(x, approximate="tanh"), {"use_gelu": True}, {90: 0.45}, _HALF),
)
"""The times are an H200's (`benchmarks.epilogues --plain`, 2026-11-22): the relu 0.05 to 0.09, the gelu 0.33 to 0.44
for products of 4 to 25 million elements. The gelu's error was 0.7 of eager's, the relu's the same; both kept a NaN."""
FIRST_US = 0.3
"""Of a product of few elements: 64 by 4096."""
LEAST_ROWS = 32
"""With fewer it was not measured; with one row ATen takes the activation in a second kernel."""
NAME = "the library's own epilogue"
NEAR = 1e-6
"""How near values have to be: what rounding a formula's constants to float32 changes. The gelu by erf is 4e-4 away from
the one by tanh."""


def offer_library(template: Template, program: Program) -> list[Choice]:
    """addmm with an activation as one call, where that is what is computed."""
    found = _with_activation(template, program)
    return [] if isinstance(found, str) else [_choice(*found, template, program)]


def offer_library_epilogue(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """The same without a measurement, where the call was measured to take no longer than it does without."""
    if context.target.type != "cuda" or template.kind != "addmm":
        return ()
    program: Program = context.program
    found, call = _with_activation(template, program), context.estimate(template)
    if isinstance(found, str):
        context.verdict(NAME, found)
        return ()
    adds = found[0].us.get(context.target.capability)
    if adds is None or call is None:
        context.verdict(NAME, "nobody measured it on this device")
        return ()
    made = program.buffers[str(template.outputs[0])]
    rows, columns = map(program.hint, made.layout.size)
    if rows < LEAST_ROWS or made.dtype not in _HALF:
        context.verdict(NAME, f"it is for {LEAST_ROWS} rows and more, of bfloat16 or float16")
        return ()
    adds = FIRST_US + adds * rows * columns / 1e6
    if shared_users(program, template, [found[1].name]):  # a loop could have been fused with it
        adds += rows * columns * made.dtype.itemsize / context.target.bandwidth
    us = call.low_us + adds
    estimate = Estimate(us, us, us, f"{adds:.3g} µs more than the library's call at its best, as measured")
    return [_choice(*found, template, program, estimate)]


def _choice(
    activation: Activation, user: Loop, template: Template, program: Program, estimate: Estimate | None = None
) -> Choice:
    (output,), made = user.writes, program.buffers[str(template.outputs[0])]
    wanted = program.buffers[output]
    name = f"cublaslt addmm + {activation.name}"
    same = made.layout.size == wanted.layout.size
    own = output if same else f"{made.name}_2d"
    call = Extern(
        template.name,
        template.device,
        _ACTIVATION,
        template.args,
        activation.arguments,
        outputs=(own,),
        origins=(*template.origins, *user.origins),
    )
    if same:
        return Choice(name, "template", Replacement((call,), absorbs=(user.name,)), estimate)
    args = (TensorRef(own, made.layout), list(wanted.layout.size))
    view = torch.ops.aten.view.default
    seen = Extern(f"{template.name}_view", template.device, view, args, outputs=(output,), aliases={output: own})
    buffers = (replace(made, name=own, kind="temporary"),)
    return Choice(name, "template", Replacement((call, seen), buffers, (user.name,)), estimate)


def _with_activation(template: Template, program: Program) -> tuple[Activation, Loop] | str:
    """The activation that is computed of an addmm, and by which loop; or why there is none."""
    if template.kind != "addmm" or template.kwargs or template.outputs[0] is None:
        return "it is no addmm, or one with factors"
    bias, name = argument_names(template)["self"], template.outputs[0]
    if not isinstance(bias, TensorRef) or len(bias.layout.size) != 1 or bias.layout.stride[0] != 1:
        return "only a bias of one row is added on the way out"
    users = [op for op in program.operations if name in op.reads]
    user = users[0] if len(users) == 1 else None
    if not isinstance(user, Loop):
        return "not one loop alone uses the result"
    function = _function(user, program, name)
    if function is None:
        return "what uses the result is no function of each element alone"
    activation = _named(function, program.buffers[name].dtype)
    if activation is None:
        return "what uses the result is neither relu nor gelu by tanh, or its type is float32"
    if needed_outside(program, {template.name, user.name}) != set(user.writes):
        return "someone else needs the product itself"
    return (activation, user) if stands(program, template, [user.name]) else "there is no place for both as one"


def _function(loop: Loop, program: Program, name: str) -> Node | None:
    """What the loop stores, where that is a function of the same element of the matrix `name` alone."""
    if len(loop.stores) != 1 or loop.is_reduction:
        return None
    (store,) = loop.stores
    read, written = program.buffers[name], program.buffers[store.buffer]
    if read.dtype != written.dtype or not (read.layout.is_contiguous() and written.layout.is_contiguous()):
        return None
    if read.layout.offset != 0 or written.layout.offset != 0 or sympy.expand(read.layout.numel - written.layout.numel):
        return None
    if store.mode != "set" or store.mask is not None or store.indirect:
        return None
    if sympy.expand(product(r.size for r in loop.ranges) - written.layout.numel):
        return None  # a part of it
    here = _place(store.index, written)
    plain = all(
        node.buffer == name and node.mask is None and not node.indirect and _place(node.index, read) == here
        for node in loop.loads
    )
    return store.value if plain and loop.loads else None


def _place(index: Sequence[Expr], buffer: Buffer) -> Expr:
    """Where in memory an element lies: a matrix is used as a batch of matrices, too."""
    return sympy.expand(sum((step * at for step, at in zip(buffer.layout.stride, index, strict=True)), start=ZERO))


def _named(value: Node, dtype: torch.dtype) -> Activation | None:
    x = _places()
    found = _values(value, x, {})
    if found is None or found.shape != x.shape:
        return None
    for activation in ACTIVATIONS:
        fits = activation.dtypes is None or dtype in activation.dtypes
        if fits and torch.allclose(found, activation.meaning(x), rtol=NEAR, atol=NEAR):
            return activation
    return None


@lru_cache(maxsize=1)
def _places() -> torch.Tensor:
    """Where functions are compared: close together around 0, and far out; irregular, so that none is hit by chance."""
    near = torch.linspace(-6.0, 6.0, 101, dtype=torch.float64) + 0.0137
    return torch.cat((near, torch.tensor([-300.7, -41.3, -1e-5, 0.0, 1e-5, 41.3, 300.7], dtype=torch.float64)))


def _values(node: Node, x: torch.Tensor, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    """A node's values where the loads are x, in float64 and without its roundings; None for what has none."""
    if node not in known:
        known[node] = _value(node, x, known)
    return known[node]


def _value(node: Node, x: torch.Tensor, known: dict[Node, torch.Tensor | None]) -> torch.Tensor | None:
    if node.op == "load":
        return x
    if node.op == "const":
        dtype = torch.float64 if node.dtype.is_floating_point else node.dtype
        return torch.tensor(node.attrs[0], dtype=dtype)
    args = [_values(arg, x, known) for arg in node.args]
    given = [arg for arg in args if arg is not None]
    if len(given) < len(args):
        return None
    if node.op == "cast" and node.dtype.is_floating_point and node.args[0].dtype.is_floating_point:
        return given[0]
    if node.op not in OPS or not node.args:
        return None
    return OPS[node.op].torch(*given)


__all__ = ["offer_library", "offer_library_epilogue"]
