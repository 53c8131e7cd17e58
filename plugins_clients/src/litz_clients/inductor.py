"""What other programs' passes ask torch._inductor for: no other module of litz imports torch._inductor.

Passes that were written for Inductor's graphs read Inductor's settings and its current fake mode. Such passes find both
here while litz runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch._inductor.config
from torch._inductor.virtualized import V

_TRACING = ("enable_auto_functionalized_v2",)
"""Settings of Inductor's that functionalization reads for every backend: what the traced graph looks like."""


@contextmanager
def settings(config: Mapping[str, Any]) -> Iterator[None]:
    """Inside, those of Inductor's settings hold that decide what AOTAutograd's graph looks like. config: settings of
    Inductor's by name; others of them are left alone, since Inductor's code generation is not used."""
    changes = {name: config[name] for name in _TRACING if name in config}
    with torch._inductor.config.patch(changes):
        yield


@contextmanager
def fake_mode(graph: torch.fx.Graph) -> Iterator[None]:
    """Inside, passes over `graph` find the graph's own fake mode where Inductor's pattern matcher looks for one."""
    values = (node.meta.get("val") for node in graph.nodes)
    found = next((value.fake_mode for value in values if hasattr(value, "fake_mode")), None)
    if found is None:
        yield
        return
    with V.set_fake_mode(found), found:
        yield
