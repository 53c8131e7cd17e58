"""Library calls that do a product's users too. In: a contraction and where it stands. Out: choices.

cuBLASLt adds a bias and takes the relu, or the gelu by its tanh form, on a product's way out; torch offers it as
`aten.addmm` and `aten._addmm_activation`. What a user computes is recognised by its values, whatever it was written as:
the loop is evaluated in float64 at some places. The call rounds once where the loop rounds twice or more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sympy
import torch
import torch.nn.functional as F

from litz.cost.contractions import argument_names
from litz.ir import Buffer, Extern, Layout, Loop, Node, Program, Template, TensorRef
from litz.ir.build import const
from litz.ir.dtypes import HALF
from litz.ir.index import ONE, ZERO, Expr, flat_index, product
from litz.ir.node import rewrite, walk, with_args
from litz.ir.ops import OPS
from litz.ir.pattern import STORED, fits, match_loop
from litz.ir.reductions import evaluate
from litz.schedule.choices import Replacement, needed_outside
from litz.target import Room, figures_of
from litz.target.times import memory
from litz_plugins import Choice, ChoiceContext, Estimate

from ..epilogue import shared_users, stands
from ..module import Unsuitable, offer
from .gemm import OPERANDS

_ADDMM, _ACTIVATION = torch.ops.aten.addmm.default, torch.ops.aten._addmm_activation.default


@dataclass(frozen=True)
class Activation:
    """meaning: of the call's last step. call, arguments: which call has it, and what that takes for it. us: which of
    `EpilogueFigures` says what it adds to a product, for a million elements, at most. dtypes: for which it is as exact
    as eager's; None for all. aligned: does it take that time only where rows begin at multiples of 16 bytes?"""

    name: str
    call: torch._ops.OpOverload
    meaning: Callable[[torch.Tensor], torch.Tensor]
    arguments: Mapping[str, bool]
    us: str
    dtypes: Collection[torch.dtype] | None = None
    aligned: bool = False


@dataclass(frozen=True)
class EpilogueFigures(Room):
    """The time that the library's epilogues add to a product, for devices where it was measured: `figures/h100.toml`
    explains. relu_us, gelu_us, bias_us: µs for a million elements, at most. first_us: for a product of few elements.
    least_rows: fewer were not measured."""

    table = "library_epilogue"
    relu_us: float | None = None
    gelu_us: float | None = None
    bias_us: float | None = None
    first_us: float = 0.0
    least_rows: int = 0


ACTIVATIONS = (
    Activation("relu", _ACTIVATION, torch.relu, {}, "relu_us"),
    Activation("gelu", _ACTIVATION, lambda x: F.gelu(x, approximate="tanh"), {"use_gelu": True}, "gelu_us", HALF, True),
)
BIAS_ALONE = Activation("nothing", _ADDMM, lambda x: x, {}, "bias_us")
NAME = "the library's own epilogue"
NEAR = 1e-6
"""How near values have to be: what rounding a formula's constants to float32 changes. The gelu by erf is 4e-4 away from
the one by tanh."""


@dataclass(frozen=True)
class Found:
    """A loop that uses a product: it computes an activation of the product and a bias. loop: the user itself."""

    activation: Activation
    bias: TensorRef
    loop: Loop


def offer_library(template: Template, program: Program) -> list[Choice]:
    """Offers addmm with an activation as one call of the library, where the program computes that."""
    found = _find(template, program)
    return [] if isinstance(found, str) else [_choice(found, template, program)]


@offer("library_epilogue", NAME)
def offer_library_epilogue(template: Template, context: ChoiceContext) -> Sequence[Choice]:
    """Offers the same call without measuring, where an earlier measurement says how much longer it takes than the
    product."""
    program: Program = context.program
    made = program.buffers[str(template.outputs[0])]
    rows, columns = map(program.hint, made.layout.size)
    limits = figures_of(context.target, EpilogueFigures)
    if rows < limits.least_rows or made.dtype not in HALF:
        raise Unsuitable(f"the call is for {limits.least_rows} rows and more, of bfloat16 or float16")
    found, call = _find(template, program), context.estimate(template)
    if isinstance(found, str):
        raise Unsuitable(found)
    adds = getattr(limits, found.activation.us)
    if adds is None or call is None:
        raise Unsuitable("the call was not measured on this device")
    if found.activation.aligned and not _is_aligned(template, program):
        raise Unsuitable("the call is slow where rows do not begin at multiples of 16 bytes")
    adds = limits.first_us + adds * rows * columns / 1e6
    if shared_users(program, template, [found.loop.name]):  # a loop could have been fused with it
        adds += memory(rows * columns * made.dtype.itemsize, context.target).us
    us = call.low_us + adds
    estimate = Estimate(us, us, us, f"{adds:.3g} µs more than the library's call at its best, as measured")
    return [_choice(found, template, program, estimate)]


def _is_aligned(template: Template, program: Program) -> bool:
    """Returns whether each row of the operands and of the result begins at a multiple of 16 bytes."""
    arguments = argument_names(template)
    matrices = (*(arguments[name] for name in OPERANDS[template.kind]), template.outputs[0])
    for matrix in matrices:
        buffer = program.buffers[matrix.buffer if isinstance(matrix, TensorRef) else str(matrix)]
        layout = matrix.layout if isinstance(matrix, TensorRef) else buffer.layout
        steps = [step for step in (*layout.stride, layout.offset) if step != 1]
        if any(program.hint(step) * buffer.dtype.itemsize % 16 for step in steps):
            return False
    return True


def _choice(found: Found, template: Template, program: Program, estimate: Estimate | None = None) -> Choice:
    (output,), made = found.loop.writes, program.buffers[str(template.outputs[0])]
    wanted = program.buffers[output]
    name = f"cublaslt addmm + {found.activation.name}"
    same = made.layout.size == wanted.layout.size
    own = output if same else f"{made.name}_2d"
    arguments = argument_names(template)
    call = Extern(
        template.name,
        template.device,
        found.activation.call,
        (found.bias, *(arguments[name] for name in OPERANDS[template.kind])),
        found.activation.arguments,
        outputs=(own,),
        origins=(*template.origins, *found.loop.origins),
    )
    if same:
        return Choice(name, "template", Replacement((call,), absorbs=(found.loop.name,)), estimate)
    args = (TensorRef(own, made.layout), list(wanted.layout.size))
    view = torch.ops.aten.view.default
    seen = Extern(f"{template.name}_view", template.device, view, args, outputs=(output,), aliases={output: own})
    buffers = (replace(made, name=own, kind="temporary"),)
    return Choice(name, "template", Replacement((call, seen), buffers, (found.loop.name,)), estimate)


def _find(template: Template, program: Program) -> Found | str:
    """Returns what is computed of an addmm, or of an mm and a bias, and by which loop; or why no call does it."""
    name = template.outputs[0]
    if template.kind not in ("addmm", "mm") or template.kwargs or name is None:
        return "it is neither mm nor addmm, or has factors"
    bias = argument_names(template)["self"] if template.kind == "addmm" else None
    if template.kind == "addmm":
        if not isinstance(bias, TensorRef) or len(bias.layout.size) != 1 or bias.layout.stride[0] != 1:
            return "the call can add a bias of one row only"
    user = program.readers[name][0] if fits("unreturned read_once", name, program) else None
    if not isinstance(user, Loop):
        return "the result is not used by exactly one loop"
    value = _value_of(user, program, name)
    others = [node for node in user.loads if node.buffer != name]
    if template.kind == "mm":
        bias = _bias(others, [node for node in user.loads if node.buffer == name], program)
    elif others:
        value = None
    if value is None or not isinstance(bias, TensorRef):
        return "the loop that uses the result is no function of each element (and, after an mm, of a bias)"
    activation = _named(value, program.buffers[name].dtype, name, alone=template.kind == "addmm")
    if activation is None:
        return "the loop that uses the result is neither relu nor gelu by tanh, or its type is float32"
    if needed_outside(program, {template.name, user.name}) != set(user.writes):
        return "another operation needs the product itself"
    return (
        Found(activation, bias, user)
        if stands(program, template, [user.name])
        else "no place in the program is right for both"
    )


def _value_of(loop: Loop, program: Program, name: str) -> Node | None:
    """Returns the value that the loop stores, where it loads the same element of the matrix `name` and no other."""
    found = match_loop(STORED, loop)
    if isinstance(found, str):
        return None
    store = found.store
    read, written = program.buffers[name], program.buffers[store.buffer]
    if read.dtype != written.dtype or not (read.layout.is_contiguous() and written.layout.is_contiguous()):
        return None
    if read.layout.offset != 0 or written.layout.offset != 0 or sympy.expand(read.layout.numel - written.layout.numel):
        return None
    if sympy.expand(product(r.size for r in loop.ranges) - written.layout.numel):
        return None  # a part of it
    here = _place(store.index, written)
    plain = all(not node.args and (node.buffer != name or _place(node.index, read) == here) for node in loop.loads)
    return store.value if plain else None


def _bias(others: Sequence[Node], own: Sequence[Node], program: Program) -> TensorRef | None:
    """The row that is added to each row of a matrix, where loads of one buffer are at the matrix's column."""
    if not own or len({node.buffer for node in others}) != 1:
        return None
    buffer, matrix = program.buffers[others[0].buffer], program.buffers[own[0].buffer]
    columns, column = matrix.layout.size[1], flat_index(own[0].index[-1:], (ONE,), ZERO)
    if buffer.dtype != matrix.dtype or buffer.device != matrix.device or buffer.layout.offset != 0:
        return None
    if not buffer.layout.is_contiguous() or sympy.expand(buffer.layout.numel - columns):
        return None
    if any(_place(node.index, buffer) != column for node in others):
        return None
    return TensorRef(buffer.name, Layout.contiguous((columns,)))


def _place(index: tuple[Expr, ...], buffer: Buffer) -> Expr:
    """Returns the place of an element in memory: a matrix is used as a batch of matrices, too."""
    return flat_index(index, buffer.layout.stride, ZERO)


def _named(value: Node, dtype: torch.dtype, name: str, alone: bool) -> Activation | None:
    """Returns the activation that a value is of the matrix `name` and, unless it is alone, a bias."""
    x = _places()
    bias = torch.zeros_like(x) if alone else torch.cos(1.7 * torch.arange(x.numel(), dtype=torch.float64))
    found = _values(value, {name: x}, bias)
    if found is None or found.shape != x.shape:
        return None
    for activation in ACTIVATIONS if alone else (*ACTIVATIONS, BIAS_ALONE):
        fits = activation.dtypes is None or dtype in activation.dtypes
        if fits and torch.allclose(found, activation.meaning(x + bias), rtol=NEAR, atol=NEAR):
            return activation
    return None


@lru_cache(maxsize=1)
def _places() -> torch.Tensor:
    """Returns the numbers at which functions are compared: close together around 0, and out to the largest numbers,
    where one that is clamped differs; irregular, so that none is hit by chance."""
    near = torch.linspace(-6.0, 6.0, 101, dtype=torch.float64) + 0.0137
    far = torch.tensor([1e-5, 13.7, 41.3, 300.7, 2.1e3, 3.3e4, 7.1e5, 1.3e9, 1.7e20, 3.1e38], dtype=torch.float64)
    return torch.cat((near, -far, torch.zeros(1, dtype=torch.float64), far))


def _values(root: Node, loaded: Mapping[str, torch.Tensor], other: torch.Tensor) -> torch.Tensor | None:
    """A node's values where the loads are as given, or `other`, in float64 and without its roundings; None for what has
    none."""

    def exact(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "cast" and node.dtype.is_floating_point and args[0].dtype.is_floating_point:
            return args[0]
        wide = node.op == "const" and node.dtype.is_floating_point
        return const(node.attrs[0], torch.float64) if wide else with_args(node, args)

    (value,) = rewrite((root,), exact)
    if any(node.op not in ("load", "const", "cast") and not (node.op in OPS and node.args) for node in walk(value)):
        return None
    return evaluate((value,), {n: loaded.get(n.buffer, other) for n in walk(value) if n.op == "load"})[0]
