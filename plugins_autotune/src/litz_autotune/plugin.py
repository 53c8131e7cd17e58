"""The plugin: litz's hooks, and what each hands on to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litz_plugins import ChoiceContext, OptionSpec, OptionsView, TemplateSpec, hookimpl
from litz_plugins.records import Choice

from .templates.offer import SEARCH, offer_gemm

GEMMS = ("mm", "addmm", "bmm", "baddbmm")


class Autotune:
    """Implements litz's hooks. Does nothing unless `max_autotune` is on."""

    @hookimpl
    def litz_register_options(self) -> Sequence[OptionSpec]:
        return [
            OptionSpec("search", str, "default", "how many configurations are measured", choices=tuple(SEARCH)),
        ]

    @hookimpl
    def litz_register_templates(self, options: OptionsView) -> Sequence[TemplateSpec]:
        if not options["max_autotune"]:
            return []
        return [TemplateSpec("gemm", GEMMS, _offered)]


def _offered(operation: Any, context: ChoiceContext) -> Sequence[Choice]:
    if operation.device.type != "cuda":
        return ()
    return offer_gemm(operation, context).choices


plugin = Autotune()
"""What the entry point names."""
