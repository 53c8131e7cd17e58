"""Loggers: what litz makes of a graph, for whoever asks for it; quiet by default.

In: the stages' results, as functions that make their text. Out: records of the loggers below "litz", of torch's
artifacts (`TORCH_LOGS=output_code`), and entries of torch's trace (`TORCH_TRACE`, which tlparse reads).

`logging.getLogger("litz")` has a line at INFO for each graph; "litz.schedule" and the others of `ARTIFACTS` have texts
at DEBUG. `TORCH_LOGS=litz` is the first, `TORCH_LOGS=+litz` all of it. A text is made only if somebody takes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import torch_logging

LOGGER = logging.getLogger("litz")
LOGGER.addHandler(logging.NullHandler())  # without it Python would print warnings of a program that set up no logging


@dataclass(frozen=True)
class Artifact:
    """A text that litz logs for a graph.

    name: of the logger, below "litz". torch: what TORCH_LOGS calls the like of other compilers. description: for
    `TORCH_LOGS=+help`.
    """

    name: str
    torch: tuple[str, ...]
    description: str

    @property
    def own(self) -> str:
        """Returns the artifact's name in TORCH_LOGS, which starts with litz."""
        return f"litz_{self.name}"


ARTIFACTS: Mapping[str, Artifact] = {
    artifact.name: artifact
    for artifact in (
        Artifact("graph", ("post_grad_graphs",), "The graph that litz lowers, after its graph passes."),
        Artifact("program", ("ir_pre_fusion",), "litz's program: loops and library calls before fusion."),
        Artifact("schedule", ("ir_post_fusion", "schedule"), "litz's schedule: kernels, calls, memory, in order."),
        Artifact("fusion", ("fusion",), "What litz fused, what it kept apart, and why (litz-tools)."),
        Artifact("perf_hints", ("perf_hints",), "What litz leaves to the library, and where (litz-tools)."),
        Artifact("output_code", ("output_code",), "The wrapper that litz generated."),
        Artifact("kernel_code", ("kernel_code",), "The kernels that litz generated, each text once."),
    )
}


def register() -> None:
    """Makes litz's own log names known to torch, if torch is loaded. `import litz` and the first compile call this."""
    torch_logging.register({artifact.own: artifact.description for artifact in ARTIFACTS.values()})


def show(name: str, graph: str, text: Callable[[], str]) -> None:
    """Logs the text of an artifact, by its name in `ARTIFACTS`, once, and traces it; makes no text for nobody."""
    artifact = ARTIFACTS[name]
    own = LOGGER.getChild(name)
    torch_loggers = (torch_logging.artifact_logger(known) for known in (artifact.own, *artifact.torch))
    # One logger is enough: who has asked for it under two names wants it once.
    for logger in (own, *(logger for logger in torch_loggers if logger is not None)):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s of %s:\n%s", name, graph, text())
            break
    torch_logging.trace(f"litz_{graph}_{name}", text)


def say(text: Callable[[], str]) -> None:
    """Logs a line at INFO; makes no text for nobody."""
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("%s", text())
