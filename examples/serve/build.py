"""Writes the artifact of a server: its steps, compiled, and its setup.

python -m examples.serve.build /tmp/tiny --model tiny
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from .pieces import build
from .setup import add_arguments, make_setup


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.serve.build", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", default="default", help="litz's mode, as max-autotune")
    add_arguments(parser)
    args = parser.parse_args(argv)
    setup, weights = make_setup(args)
    start = time.perf_counter()
    build(setup, weights, args.folder, args.mode)
    print(f"{len(setup.shapes())} steps in {time.perf_counter() - start:.1f} s: {args.folder}")


if __name__ == "__main__":
    main()
