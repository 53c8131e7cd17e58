"""capture -> lower -> verify -> interpret, against eager, with the decompositions and lowerings of litz-operators."""

from __future__ import annotations

from functools import partial

from core.lowering import harness
from support.own_plugins import operators

check = partial(harness.check, plugins=operators())
program_of = partial(harness.program_of, plugins=operators())

__all__ = ["check", "program_of"]
