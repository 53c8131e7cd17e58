"""What may run a contraction besides the library call as it is. In: a contraction and where it stands. Out: choices,
and what was left out with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litz.schedule.choices import fits
from litz_contractions.api import KINDS, Offer, offer_depthwise, offer_gemm, offer_library, offer_rows
from litz_plugins import ChoiceContext
from litz_plugins.records import Choice

from .switches import LIBRARY_BACKEND, SEARCH, TEMPLATE_BACKEND, most_in_one_kernel


def offered(operation: Any, context: ChoiceContext) -> Sequence[Choice]:
    """Returns the template's choices for a contraction: kernels and variants of the library call that fit."""
    if "products" not in context.target.abilities or TEMPLATE_BACKEND not in context.options["autotune.backends"]:
        return ()
    kernels = _kernels(operation, context)
    for name, why in kernels.rejected:
        context.verdict(name, why)
    choices = (*offer_depthwise(operation, context.program), *kernels.choices)
    choices = (*choices, *offer_rows(operation, context, measured=True))
    if LIBRARY_BACKEND in context.options["autotune.backends"]:
        choices = (*offer_library(operation, context.program), *choices)
    most = most_in_one_kernel(context.options)
    return [choice for choice in choices if fits(choice, operation, context.program, most)]


def _kernels(operation: Any, context: ChoiceContext) -> Offer:
    count = SEARCH[str(context.options["autotune.search"])]
    return offer_gemm(operation, context, count, most_in_one_kernel(context.options))


def rejections(context: ChoiceContext) -> Sequence[tuple[str, str]]:
    """Returns what the template left out of its offer, each with the reason."""
    if context.operation.kind in KINDS and "products" in context.target.abilities:
        return _kernels(context.operation, context).rejected
    return ((f"triton {context.operation.kind}", f"no template for it on a {context.target.type} device"),)


__all__ = ["KINDS", "offered", "rejections"]
