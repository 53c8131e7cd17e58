"""A product with a thin matrix. In: a contraction and where it stands. Out: a choice for each tile that is tried."""

from __future__ import annotations

import torch

from litz.ir.index import floordiv, to_expr
from litz.ir.pattern import Value
from litz.schedule.choices import Recipe, Replacement, user_of
from litz_plugins import Choice, Estimate

MOST_COLUMNS = 16
"""The narrowest tile that `tl.dot` takes."""
TYPES = (torch.float16, torch.bfloat16, torch.float32)
TILES = ((64, 64, 4, 3), (128, 64, 4, 3), (32, 128, 4, 4), (128, 128, 8, 2))
"""Rows and depth of a tile, warps, stages. The first is taken where nothing is measured."""
NAME = "thin product"

LOADED = Value("load", name="result", words="plain uncast")
"""An element that a loop loads; behind a conversion, if the type is a half one."""
SILU = Value("mul", (LOADED, Value("sigmoid", (LOADED,))), words="uncast")
"""What a loop that computes x * sigmoid(x) stores, in either order."""


def silu_product(a, b):
    """Returns what the kernel does with SILU=True."""
    return torch.nn.functional.silu(a @ b)


def offer_thin(operation, context):
    """Offers the kernel for an mm of [n, k] by [k, m], m at most 16, on a GPU; with a SiLU of the product, too."""
    _, b = operation.args  # litz.ir.TensorRef: a strided view of a buffer
    program, target = context.program, context.target
    out = program.buffers[operation.outputs[0]]
    columns = b.layout.size[1]
    if "user_kernels" not in target.abilities or out.dtype not in TYPES:
        return []
    if not columns.is_Integer or int(columns) > MOST_COLUMNS:
        context.verdict(NAME, f"{columns} columns: a library's kernel is as good from {MOST_COLUMNS} on")
        return []
    user = user_of(operation, SILU, program)
    found = [make_choice(operation, context, tile, None) for tile in tiles(context)]
    if isinstance(user, str):
        context.verdict(f"{NAME} with silu", user)
    else:
        found += [make_choice(operation, context, tile, user) for tile in tiles(context)]
    return found


def tiles(context):
    """Returns the tiles to offer: all of them where litz-autotune measures."""
    return TILES if context.options["max_autotune"] else TILES[:1]


def make_choice(operation, context, tile, user):
    """Returns the choice of one tile. user: the loop whose work the kernel does too, None for the product alone."""
    name = f"{NAME}{' with silu' if user else ''} {tile[0]} x {tile[1]}"
    absorbs = (user.loop.name,) if user else ()
    recipe = Recipe(absorbs, name, lambda: replacement(operation, context.program, tile, user))
    return Choice(name, "template", recipe, estimate(operation, context))


def estimate(operation, context):
    """Returns the time that memory takes: the kernel reads both matrices once and writes the result."""
    program = context.program
    names = (*(ref.buffer for ref in operation.args), operation.outputs[0])
    moved = sum(program.hint(program.buffers[name].nbytes) for name in names)
    us = moved / context.target.bandwidth + context.target.launch_us
    return Estimate(1.3 * us, us, 1.8 * us, f"{moved} bytes, at 55 to 100 % of the memory's bandwidth")


def replacement(operation, program, tile, user):
    """Returns the kernel in place of the product, and of the loop that uses it."""
    # What needs Triton is imported where the kernel is made.
    from litz_triton_kernels.template import triton_call

    from .kernels import thin_product

    rows_of_tile, depth_of_tile, warps, stages = tile
    a, b = operation.args
    (rows, depth), columns = a.layout.size, b.layout.size[1]
    out = program.buffers[user.store.buffer if user else operation.outputs[0]]
    call = triton_call(
        thin_product,
        [a, b, out.name, rows, depth, columns, *a.layout.stride, *b.layout.stride, *out.layout.stride],
        floordiv(rows + rows_of_tile - 1, to_expr(rows_of_tile)),
        {"ROWS": rows_of_tile, "DEPTH": depth_of_tile, "COLUMNS": MOST_COLUMNS, "SILU": user is not None},
        operation=operation,
        program=program,
        meaning=silu_product if user else None,
        outputs=(out.name,),
        num_warps=warps,
        num_stages=stages,
    )
    return Replacement((call,), absorbs=(user.loop.name,) if user else ())
