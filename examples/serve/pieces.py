"""The compiled steps of a server, one for each shape, and who compiles them.

    eager      the function of model.py as it is
    litz       torch.compile(..., backend="litz")
    inductor   torch.compile(...), the peer
    artifact   loaded from a folder that `build` has written: no dynamo, no compiler

In: a `Setup`, its weights and caches. Out: a `Piece` for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .model import step
from .setup import Setup, Shape, save

SOURCES = ("eager", "litz", "inductor", "artifact")
GRAPHS = ("engine", "compiler", "none")
"""Who records CUDA graphs of batches: `Piece.record`, litz by its option `cuda_graphs`, nobody."""
Run = Callable[..., tuple[Tensor, Tensor]]
"""A step of flat inputs: tokens, positions, last, weights, caches."""


class Piece:
    """A step of one shape with its inputs, which stay where they are. Call it with lists of numbers and with caches."""

    def __init__(self, run: Run, shape: Shape, weights: Sequence[Tensor]) -> None:
        device = weights[0].device
        self.tokens = torch.zeros(shape.batch, shape.length, dtype=torch.int64, device=device)
        self.positions, self.last = torch.zeros_like(self.tokens), self.tokens.new_zeros(shape.batch)
        self._run, self._weights = run, weights
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self, tokens: list[list[int]], positions: list[list[int]], last: list[int], caches: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the likeliest token of each row, and the logits. Both are good until the next call."""
        self.tokens.copy_(torch.tensor(tokens))
        self.positions.copy_(torch.tensor(positions))
        if self._graph is not None:  # the caches are those of the recording, and last is 0
            self._graph.replay()
            return self._found
        self.last.copy_(torch.tensor(last))
        return self.run(caches)

    def run(self, caches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Runs the step on the inputs as they are."""
        return self._run(self.tokens, self.positions, self.last, *self._weights, *caches)

    def record(self, caches: Sequence[Tensor], pool: Any) -> None:
        """Records the step on these caches as a CUDA graph, which later calls replay. It must have run before."""
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._found = self.run(caches)


def views(caches: Sequence[Tensor], shape: Shape, slot: int = 0) -> list[Tensor]:
    """Returns the part of the caches that a step sees: `batch` slots from `slot` on, up to its window."""
    return [cache[slot : slot + shape.batch, :, : shape.window] for cache in caches]


def make_pieces(
    setup: Setup, weights: Sequence[Tensor], caches: Sequence[Tensor], source: str, folder: Path, graphs: str, mode: str
) -> dict[Shape, Piece]:
    """Returns the steps, each of which has run: all is compiled, loaded and recorded.

    folder: of the artifact. mode: of the compiler, as torch.compile's."""
    pieces, pool = {}, torch.cuda.graph_pool_handle() if setup.device.startswith("cuda") else None
    run = _step_of(setup, len(weights))
    if source in ("litz", "inductor"):
        from torch import _dynamo

        _dynamo.config.recompile_limit = len(setup.shapes())  # one compile for each
    for shape in setup.shapes():
        batch, seen = shape.length == 1, views(caches, shape)
        if source == "artifact":
            import litz

            made: Run = litz.load(folder / f"{shape}.litz")
        elif source == "eager":
            made = run
        else:
            options = {"mode": mode, "cuda_graphs": batch and graphs == "compiler"}
            how: dict[str, Any] = {"options": options} if source == "litz" else {"mode": mode}
            made = torch.compile(run, backend=source, dynamic=False, fullgraph=True, **how)
        pieces[shape] = piece = Piece(made, shape, weights)
        for _ in range(2):  # litz's own recordings are made by the second call
            piece.run(seen)
        if batch and pool is not None and graphs == "engine":
            piece.record(seen, pool)
    return pieces


def build(setup: Setup, weights: Sequence[Tensor], folder: Path, mode: str) -> None:
    """Writes an artifact of each step into a folder, and what `load_setup` reads. No weights are in the artifacts:
    those of a seed are made anew, and others lie in a file of their own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    import litz

    folder.mkdir(parents=True, exist_ok=True)
    run, caches = _step_of(setup, len(weights)), setup.caches()
    for shape in setup.shapes():
        piece = Piece(run, shape, weights)
        inputs = [piece.tokens, piece.positions, piece.last, *weights, *views(caches, shape)]
        with torch.no_grad():  # before dispatch: attention stays one operation
            graph = make_fx(run, tracing_mode="fake", pre_dispatch=True)(*inputs)
        litz.standalone_compile(graph, inputs, options={"mode": mode}).save(folder / f"{shape}.litz")
    save(setup, weights, folder)  # last: a folder with the setup is whole


def _step_of(setup: Setup, count: int) -> Run:
    """The step as a function of flat inputs, of which `count` are weights."""

    def run(tokens: Tensor, positions: Tensor, last: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        return step(setup.config, tokens, positions, last, state[:count], state[count:])

    return run
