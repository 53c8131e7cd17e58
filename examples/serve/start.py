"""From a command line to an engine that is ready: what the server and the load generator have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .engine import Engine
from .pieces import GRAPHS, SOURCES, make_pieces
from .setup import add_arguments, load_setup, make_setup


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `make_engine` reads."""
    parser.add_argument("--artifact", type=Path, metavar="FOLDER", help="start from what `build` has written")
    parser.add_argument("--source", choices=[name for name in SOURCES if name != "artifact"], default="litz")
    parser.add_argument("--graphs", choices=GRAPHS, default="engine", help="who records CUDA graphs of batches")
    parser.add_argument("--mode", default="default", help="the compiler's, as torch.compile's")
    parser.add_argument("--queue", type=int, default=256, help="requests that may wait for a slot; more get a 429")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds that one may wait; then it gets a 503")
    add_arguments(parser)


@torch.no_grad()
def make_engine(args: argparse.Namespace) -> Engine:
    """Returns an engine whose steps are compiled, or loaded, and have run. `Engine.run` is for a thread of its own."""
    if args.graphs == "compiler" and (args.artifact or args.source != "litz"):
        raise SystemExit(
            "--graphs compiler is for --source litz: an artifact records none, and the peers' are not tried"
        )
    setup, weights = load_setup(args.artifact) if args.artifact else make_setup(args)
    caches = setup.caches()
    source, folder = ("artifact" if args.artifact else args.source), args.artifact or Path()
    pieces = make_pieces(setup, weights, caches, source, folder, args.graphs, args.mode)
    return Engine(setup, pieces, caches, args.queue, args.patience)
