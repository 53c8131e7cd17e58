"""The library's call on keys and values as they were before they were repeated. In: an `Attention` where it stands.
Out: a choice, where the library's kernel takes heads that share keys.

The call is for many queries: for few there is a kernel that splits the keys (`decode`).
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.cost.contractions import argument_names
from litz.ir import Extern, Program
from litz.schedule.choices import Replacement
from litz_plugins import Choice, ChoiceContext, Estimate

from ..module import Unsuitable, offer
from .decode import MOST_ROWS
from .in_place import read_in_place
from .operation import Attention

NAME = "the library call, keys in place"
GROUPED = ("aten::_scaled_dot_product_flash_attention",)
"""Library calls whose kernels take fewer heads of the key than of the query."""


@offer("", NAME)
def offer_in_place(attention: Attention, context: ChoiceContext) -> Sequence[Choice]:
    """Offers the same call of the library without the copies before it."""
    program: Program = context.program
    schema = getattr(attention.target, "_schema", None)
    if schema is None or schema.name not in GROUPED:
        return ()
    found = read_in_place(attention, program)
    changed, dtype = found.attention, program.buffers[attention.query.buffer].dtype
    rows = changed.group * changed.query.layout.size[2]
    operands = {"query": changed.query, "key": changed.key, "value": changed.value}
    if not found.absorbs or (rows.is_Integer and int(rows) <= MOST_ROWS):
        raise Unsuitable(
            "it has few queries" if found.absorbs else "no operation copies keys or values before the call"
        )
    if any(program.buffers[ref.buffer].dtype != dtype or ref.layout.stride[3] != 1 for ref in operands.values()):
        raise Unsuitable("the tensor before the copy has another type, or heads that are not contiguous")
    names = list(argument_names(attention))
    args = tuple(operands.get(name, given) for name, given in zip(names, attention.args, strict=False))
    call = Extern(
        attention.name,
        attention.device,
        attention.target,
        args,
        attention.kwargs,
        outputs=attention.outputs,
        origins=attention.origins,
    )
    took = context.estimate(attention)  # at least: without the copies the call has no more to do
    estimate = took and Estimate(took.low_us, took.low_us, took.low_us, f"at most what it took: {took.why}")
    return [Choice(NAME, "template", Replacement((call,), (), found.absorbs), estimate)]
