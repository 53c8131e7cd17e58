"""Custom passes that a program's configuration brings under Inductor's names, as litz runs them.

In: a configuration, name -> pass; a pass is called with an fx.Graph, changes the graph in place, and has `uuid()`. Out:
`CustomPass`es, for `litz.standalone_compile(passes=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz_clients.inductor import fake_mode

TRACED_PASS = "pre_grad_custom_pass"
"""Runs on the graph that dynamo captured, before AOTAutograd."""
GRAPH_PASSES = (
    "joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass",
)  # fmt: skip
"""Run on the functional ATen graph, in this order."""


@dataclass(frozen=True)
class CustomPass:
    """One pass over the functional graph, with its identity for litz's key."""

    name: str
    run: Callable[[torch.fx.Graph], None]
    identity: str

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Changes the graph in place."""
        with fake_mode(graph):
            self.run(graph)

    def uuid(self) -> str:
        """Returns what changes when the pass does."""
        return self.identity


def passes_of(config: Mapping[str, Any], names: Sequence[str]) -> list[CustomPass]:
    """Returns the passes of a configuration, in the order of `names`. Errors: TypeError for one without identity."""
    found = [(name, config[name]) for name in names if config.get(name) is not None]
    return [CustomPass(name, run, identity_of(name, run)) for name, run in found]


def identity_of(name: str, run: Any) -> str:
    """Returns a pass's `uuid()`. Errors: TypeError where there is none: a cached graph could be of another pass."""
    uuid = run.uuid() if hasattr(run, "uuid") else None
    if uuid is None:
        raise TypeError(f"the pass {name} has no uuid(), so that litz cannot tell its graphs from another pass's")
    return f"{name} {type(run).__module__}.{type(run).__qualname__} {uuid!r}"


def run_on(gm: torch.fx.GraphModule, run: Any) -> None:
    """Runs a pass on a captured graph, in place."""
    run(gm.graph)
    gm.recompile()
