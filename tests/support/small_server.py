"""A server of examples/serve as small as one can be, and the tokens that it must give."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from examples.serve.engine import Engine, Request
from examples.serve.model import Config, make_caches, random_weights, step
from examples.serve.pieces import make_pieces
from examples.serve.setup import Setup

CONFIG = Config(vocabulary=272, width=32, hidden=48, layers=1, heads=4, key_heads=2, context=192)
MARGIN = 1e-4
"""Logits that are closer than this may change places by rounding."""


def setup_of(context: int = CONFIG.context, **changes: Any) -> Setup:
    config = Config(**{**CONFIG.__dict__, "context": context})
    known: dict[str, Any] = {"batches": (1, 3), "lengths": (8,), "windows": (context,), "seed": 0}
    return Setup(config, "float32", "cpu", **{**known, **changes})


@cache
def weights_of(setup: Setup) -> list[torch.Tensor]:
    return random_weights(setup.config, setup.seed, setup.device, setup.type)


@torch.no_grad()
def engine_of(
    setup: Setup, source: str = "eager", folder: Path = Path(), graphs: str = "engine", **more: Any
) -> Engine:
    caches, weights = setup.caches(), weights_of(setup)
    return Engine(setup, make_pieces(setup, weights, caches, source, folder, graphs, "default"), caches, **more)


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """An engine at work, which has ended all its requests at the end."""
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield engine
    finally:
        engine.close()
        thread.join(60)
        assert not thread.is_alive()


class Answer:
    """A request, and what came of it."""

    def __init__(self, prompt: Sequence[int], most: int, **how: Any) -> None:
        self.tokens, self.reason, self._ended = list[int](), "", threading.Event()
        self.request = Request(tuple(prompt), most, self._take, **how)

    def _take(self, token: int | None, reason: str | None) -> None:
        if token is not None:
            self.tokens.append(token)
        if reason is not None:
            self.reason = reason
            self._ended.set()

    def result(self) -> list[int]:
        assert self._ended.wait(60)
        return self.tokens


def prompts(count: int, seed: int = 0, most: int = 30) -> list[list[int]]:
    """Prompts of 1 to `most` tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, most + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def greedy(setup: Setup, prompt: Sequence[int], most: int) -> list[int]:
    """The likeliest tokens, by eager: each from all tokens before it, alone, with no cache. Each is likelier than any
    other by a margin that no order of sums makes up for."""
    tokens = list(prompt)
    for _ in range(most):
        caches = make_caches(setup.config, 1, setup.device, setup.type)
        ids = torch.tensor([tokens], device=setup.device)
        places, last = torch.arange(len(tokens), device=setup.device)[None], ids.new_tensor([len(tokens) - 1])
        likeliest, logits = step(setup.config, ids, places, last, weights_of(setup), caches)
        first, second = logits[0].topk(2).values.tolist()
        assert first - second > MARGIN, f"{first - second}: choose another prompt"
        tokens.append(int(likeliest))
    return tokens[len(prompt) :]
