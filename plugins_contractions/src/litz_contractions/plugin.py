"""The plugin: litz's hooks, and what each hands on to.

`litz --help` and `litz options` load this module, which therefore loads torch only in hooks that a compile calls. A
process that finds its graphs in the cache chooses nothing, and loads no template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litz_plugins import OptionsView, Pass, TemplateSpec, hookimpl


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | None:
    """Returns None: results depend on the graph, the options and the target alone, which are in the key."""
    return None


@hookimpl
def litz_register_lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings of attention. Without them torch's attention is a library call as any other."""
    from .lowerings import attention_lowerings

    return attention_lowerings()


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the passes that bring attention into a form that torch has a fused kernel for, of stage "traced", and
    those that make loops of contractions and contractions of loops, of stage "program"."""
    from .products.cover import contract_broadcast_products
    from .products.few_terms import write_out_few_terms
    from .traced.fused_attention import fuse_attention
    from .traced.written_attention import fuse_written_attention

    loops, contract = "write_out_few_terms", "contract_broadcast_products"
    return (
        Pass("fuse_attention", "traced", fuse_attention),
        Pass("fuse_written_attention", "traced", fuse_written_attention, after=("fuse_attention",)),
        Pass(loops, "program", write_out_few_terms, ("remove_dead_operations", "join_sums?"), (contract,)),
        # Before sums are split: a product of matrices is not.
        Pass(contract, "program", contract_broadcast_products, (loops,), ("split_reductions",)),
    )


@hookimpl(tryfirst=True)  # of equally good ways one that needs no measurement goes before those that do
def litz_register_templates(options: OptionsView) -> Sequence[TemplateSpec]:
    """Returns the templates: attention; and products without `max_autotune`, as litz-autotune offers those."""
    from .attention import decode, library, masked_call, offer, processor, written_out
    from .products.gemm import OPERANDS
    from .products.library import offer_library_epilogue
    from .products.many_rows import offer_many_rows
    from .products.rows import offer_rows
    from .products.rows_loop import KINDS, offer_rows_loop

    attention = [
        TemplateSpec("attention in blocks", ("flex_attention",), processor.offer_blocked),
        TemplateSpec("attention", ("flex_attention",), offer.offer_attention),
        TemplateSpec("attention of few queries", ("attention", "flex_attention"), decode.offer_split),
        TemplateSpec("attention with a mask", ("attention",), masked_call.offer_masked),
        TemplateSpec("attention, keys in place", ("attention",), library.offer_in_place),
        TemplateSpec("attention, written out", written_out.PRODUCTS, offer.offer_written_out),
        TemplateSpec("attention's backward", ("flex_attention_backward",), offer.offer_attention_backward),
    ]
    if options.get("max_autotune", False):
        return attention  # litz-autotune offers the others, among more
    rows = TemplateSpec("rows", tuple(OPERANDS), offer_rows)
    many = TemplateSpec("many rows", tuple(OPERANDS), offer_many_rows)
    own = TemplateSpec("the library's epilogue", ("addmm", "mm"), offer_library_epilogue)
    return [*attention, rows, own, many, TemplateSpec("rows on a processor", KINDS, offer_rows_loop)]
