"""litz's own dists as plugins that a test passes in, as (name, plugin)."""

from __future__ import annotations

import litz_contractions.plugin

CONTRACTIONS = ("contractions", litz_contractions.plugin)
