"""What a server serves: a model, where and in which type, and the shapes of the steps that are compiled.

In: arguments of a command line, or the JSON file of an artifact. Out: a `Setup`, its weights and its caches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .model import MODELS, Config, load_llama, make_caches, random_weights

SETUP, WEIGHTS = "serve.json", "weights.pt"
"""Files of an artifact's folder, beside those of the steps."""


@dataclass(frozen=True, order=True)
class Shape:
    """Of a step: rows, tokens of each row, positions of the caches that are looked at."""

    batch: int
    length: int
    window: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}x{self.window}"


@dataclass(frozen=True)
class Setup:
    """batches: rows of the steps that make a token for each request. lengths: tokens of those that read prompts.
    windows: see `Shape`; the last is the context. Each ascends. bytes: is text tokens by its bytes?"""

    config: Config
    dtype: str
    device: str
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    windows: tuple[int, ...]
    seed: int
    bytes: bool = True

    @property
    def type(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def slots(self) -> int:
        return self.batches[-1]

    def shapes(self) -> list[Shape]:
        """Returns the shapes of all steps: prompts, then batches. A prompt and a window of its length go together."""
        prompts = [Shape(1, length, window) for length in self.lengths for window in self.windows if length <= window]
        return prompts + [Shape(batch, 1, window) for batch in self.batches for window in self.windows]

    def caches(self) -> list[Tensor]:
        return make_caches(self.config, self.slots, self.device, self.type)


def save(setup: Setup, weights: Sequence[Tensor], folder: Path) -> None:
    """Writes what `load_setup` reads. Weights that a seed decides are made anew there."""
    if not setup.bytes:
        torch.save(list(weights), folder / WEIGHTS)
    (folder / SETUP).write_text(json.dumps(asdict(setup), indent=1))


def load_setup(folder: Path) -> tuple[Setup, list[Tensor]]:
    """Returns the setup of an artifact's folder, and the weights: those beside it, or the seed's."""
    data = json.loads((folder / SETUP).read_text())
    lists = {name: tuple(data[name]) for name in ("batches", "lengths", "windows")}
    setup = Setup(**{**data, "config": Config(**data["config"]), **lists})
    if (folder / WEIGHTS).exists():
        return setup, torch.load(folder / WEIGHTS, map_location=setup.device, weights_only=True, mmap=True)
    return setup, random_weights(setup.config, setup.seed, setup.device, setup.type)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `make_setup` reads."""
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--model", choices=list(MODELS), default="tiny", help="sizes; the weights are random")
    parser.add_argument("--weights", metavar="FOLDER", help="a Llama of transformers, in place of --model")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16" if on_gpu else "float32"
    )
    parser.add_argument(
        "--context", type=int, help="tokens of a request at most, prompt included; default: the model's"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="batch sizes to compile")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256], help="lengths of prompts to compile")
    parser.add_argument("--windows", type=int, nargs="+", default=[], help="positions looked at, besides the context")


def make_setup(args: argparse.Namespace) -> tuple[Setup, list[Tensor]]:
    """Returns what a command line asks for, and the weights."""
    if args.weights:
        config, weights = load_llama(args.weights, args.context or 2048, args.device, getattr(torch, args.dtype))
    else:
        config = MODELS[args.model]
        config = replace(config, context=args.context or config.context)
        weights = random_weights(config, args.seed, args.device, getattr(torch, args.dtype))
    context = config.context
    lengths = [length for length in args.lengths if length <= context] or [context]
    windows = [*(window for window in args.windows if window < context), context]
    rows = [tuple(sorted(set(row))) for row in (args.batches, lengths, windows)]
    return Setup(config, args.dtype, args.device, rows[0], rows[1], rows[2], args.seed, not args.weights), weights
