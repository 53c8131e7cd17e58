"""vLLM's pass manager without the step that makes a functional graph mutate: litz takes functional graphs."""

from __future__ import annotations

from typing import Any

from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.compilation.passes.pass_manager import PostGradPassManager

from litz_clients.vllm import COMPILER


class _LeftOut(InductorPass):
    """Stands where vLLM writes auto-functionalized calls as mutating ones, and changes nothing."""

    def __call__(self, graph: Any) -> None:
        """Leaves the graph as the other passes made it."""

    def uuid(self) -> str:
        """Returns what is part of the manager's identity."""
        return "left out by litz"


class LitzPassManager(PostGradPassManager):
    """All passes of vLLM's configuration, in vLLM's order. litz itself finds out which calls may write in place."""

    def configure(self, config: Any) -> None:
        """As vLLM's; config is a VllmConfig."""
        super().configure(config)
        if config.compilation_config.backend == COMPILER:
            self.fix_functionalization = _LeftOut()
