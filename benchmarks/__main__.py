"""`make bench`: litz against eager and TorchInductor, models and kernels, in one run.

python -m benchmarks                       everything that this machine can run
python -m benchmarks side_by_side --json FILE  one part, with a line of JSON for each row
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from benchmarks.record import add_option


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part, or all that the machine can run. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument(
        "part",
        nargs="?",
        choices=(
            "side_by_side",
            "layouts",
            "convolutions",
            "kernels",
            "host",
            "compile",
            "growth",
            "autotune",
            "decode",
            "attention",
            "artifacts",
            "soak",
            "all",
        ),
        default="all",
    )
    parser.add_argument("--out", help="write the figures to this file, as JSON")
    add_option(parser)
    args = parser.parse_args(argv)
    out = ["--out", args.out] if args.out else []
    rows = ["--json", str(args.json)] if args.json else []
    if args.part in ("side_by_side", "all"):  # all models take half an hour and more: --jobs is for that
        from benchmarks import side_by_side

        few = ["--only", *side_by_side.FEW] if args.part == "all" else []
        side_by_side.main([*few, *out, *rows])
    if args.part == "layouts":  # most of an hour with Inductor's first calls: only if asked for
        from benchmarks import layouts

        layouts.main(out)
    if args.part == "convolutions":
        from benchmarks import convolutions

        convolutions.main(out)
    if args.part in ("kernels", "all"):
        if torch.cuda.is_available():
            from benchmarks import gpu_kernels as kernels
        else:
            from benchmarks import cpu_kernels as kernels  # type: ignore[no-redef]
        kernels.main(rows)
    if args.part in ("host", "all"):
        from benchmarks import host_time

        host_time.main(rows)
    if args.part in ("compile", "all"):
        from benchmarks import first_call

        first_call.main(rows)
    if args.part == "decode":
        from benchmarks import decode

        decode.main([*out, *rows])
    if args.part == "attention":  # 168 rows, each compiled by everyone: half an hour
        from benchmarks import attention

        attention.main([*out, *rows])
    if args.part == "artifacts":
        from benchmarks import artifacts

        artifacts.main(rows)
    if args.part == "soak":
        from benchmarks import soak

        soak.main(out)
    if args.part == "growth":  # programs of up to 1600 parts: most of an hour
        from benchmarks import growth

        growth.main([])
    if args.part == "autotune":  # on its own: it takes half an hour
        from benchmarks import autotune

        return autotune.main([*out, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
