"""Ways to multiply matrices on the CPU, good and bad: what the autotuner is tested with where there is no GPU.

Functions with a name, so that they can be sent to another process. `Rivals` is the plugin that offers them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from litz.ir import Extern
from litz_plugins import Choice, ChoiceContext, TemplateSpec, hookimpl


def good(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,jk->ik", a, b)


def better(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return good(a, b)


def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return good(a, b) + 1


def nan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return good(a, b) * float("nan")


def raises(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("this candidate always raises")


def crashes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return good(a, b)


def exits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    os._exit(3)


def hangs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return good(a, b)


class Rivals:
    """Offers functions for mm."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.functions = functions

    @hookimpl
    def litz_register_templates(self, options: Any) -> Sequence[TemplateSpec]:
        return [TemplateSpec("rivals", ("mm",), self._offer)]

    def _offer(self, operation: Any, context: ChoiceContext) -> list[Choice]:
        return [
            Choice(
                function.__name__,
                "template",
                Extern(operation.name, operation.device, function, operation.args, outputs=operation.outputs),
            )
            for function in self.functions
        ]


class Sleeps:
    """A request that takes a minute."""

    def run(self, state: dict[str, Any]) -> None:
        time.sleep(60)
