"""Convolutions of every kind, channels first against channels last: the figures behind litz_layout.table.

    python -m benchmarks.convolutions [--only NAME ...] [--types bfloat16 float16 tf32 float32] [--out FILE]

Microseconds of a call with all its tensors in one layout, forward and backward (both gradients), batch 64 (4 on a CPU).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from litz_layout.measured import Case, measure

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TYPES = ("bfloat16", "float16", "tf32", "float32") if GPU else ("float32",)
BATCH = 64 if GPU else 4


@dataclass(frozen=True)
class Kind:
    """A convolution. pixels: of each side of the image; kernel: of each side; deep: a volume; up: transposed."""

    channels: int
    outputs: int
    pixels: int
    kernel: int
    stride: int = 1
    groups: int = 1
    up: bool = False
    deep: bool = False


KINDS = {
    "dense 3x3, 64 of 56": Kind(64, 64, 56, 3),
    "dense 3x3, 256 of 14": Kind(256, 256, 14, 3),
    "dense 3x3, 512 of 7": Kind(512, 512, 7, 3),
    "dense 1x1, 64 to 256 of 56": Kind(64, 256, 56, 1),
    "dense 1x1, 1024 to 256 of 14": Kind(1024, 256, 14, 1),
    "dense 1x1, 512 to 2048 of 7": Kind(512, 2048, 7, 1),
    "strided 1x1, 256 to 512 of 56": Kind(256, 512, 56, 1, 2),
    "strided 3x3, 128 of 56": Kind(128, 128, 56, 3, 2),
    "stem 7x7, 3 to 64 of 224": Kind(3, 64, 224, 7, 2),
    "stem 3x3, 3 to 32 of 224": Kind(3, 32, 224, 3, 2),
    "patches 4x4, 3 to 96 of 224": Kind(3, 96, 224, 4, 4),
    "narrowing 3x3, 128 to 32 of 28": Kind(128, 32, 28, 3),
    "narrowing 3x3, 128 to 64 of 112": Kind(128, 64, 112, 3),
    "narrowing 3x3, 1024 to 512 of 14": Kind(1024, 512, 14, 3),
    "odd 3x3, 63 to 65 of 28": Kind(63, 65, 28, 3),
    "two groups 3x3, 256 of 28": Kind(256, 256, 28, 3, groups=2),
    "groups of 64 3x3, 512 of 14": Kind(512, 512, 14, 3, groups=8),
    "groups of 64 3x3, 128 of 56": Kind(128, 128, 56, 3, groups=2),
    "groups of 112 3x3, 448 of 28": Kind(448, 448, 28, 3, groups=4),
    "groups of 48 3x3, 336 of 28": Kind(336, 336, 28, 3, groups=7),
    "groups of 40 3x3, 80 of 56": Kind(80, 80, 56, 3, groups=2),
    "groups of 40 3x3, 240 of 28": Kind(240, 240, 28, 3, groups=6),
    "groups of 40 3x3, 560 of 14": Kind(560, 560, 14, 3, groups=14),
    "groups of 40 3x3, 1360 of 7": Kind(1360, 1360, 7, 3, groups=34),
    "strided groups of 40 3x3, 560 of 28": Kind(560, 560, 28, 3, 2, groups=14),
    "groups of 32 3x3, 512 of 14": Kind(512, 512, 14, 3, groups=16),
    "groups of 24 3x3, 216 of 28": Kind(216, 216, 28, 3, groups=9),
    "groups of 16 3x3, 256 of 28": Kind(256, 256, 28, 3, groups=16),
    "groups of 12 3x3, 144 of 28": Kind(144, 144, 28, 3, groups=12),
    "groups of 8 3x3, 152 of 28": Kind(152, 152, 28, 3, groups=19),
    "groups of 6 3x3, 192 of 28": Kind(192, 192, 28, 3, groups=32),
    "groups of 4 3x3, 128 of 56": Kind(128, 128, 56, 3, groups=32),
    "depthwise 3x3, 96 of 112": Kind(96, 96, 112, 3, groups=96),
    "depthwise 5x5, 672 of 14": Kind(672, 672, 14, 5, groups=672),
    "depthwise 7x7, 96 of 56": Kind(96, 96, 56, 7, groups=96),
    "doubling depthwise 3x3, 64 of 56": Kind(64, 128, 56, 3, 2, groups=64),
    "doubling depthwise 7x7, 128 of 28": Kind(128, 256, 28, 7, 2, groups=128),
    "doubling depthwise 3x3, 512 of 7": Kind(512, 1024, 7, 3, groups=512),
    "transposed 2x2, 256 to 128 of 28": Kind(256, 128, 28, 2, 2, up=True),
    "volume 3x3x3, 32 of 32": Kind(32, 32, 32, 3, deep=True),
}


def make_case(kind: Kind, dtype: str, backward: bool, batch: int = BATCH) -> Case:
    """The kind as `litz_layout.measured` times it; a volume has an eighth of the batch."""
    rank = 3 if kind.deep else 2
    batch = max(1, batch // 8) if kind.deep else batch
    pad = 0 if kind.up or kind.kernel == kind.stride else kind.kernel // 2
    image = (batch, kind.channels, *[kind.pixels] * rank)
    into = (kind.channels, kind.outputs) if kind.up else (kind.outputs, kind.channels // kind.groups)
    weight = (*into, *[kind.kernel] * rank)
    side = kind.pixels * kind.stride if kind.up else (kind.pixels + 2 * pad - kind.kernel) // kind.stride + 1
    result = (batch, kind.outputs, *[side] * rank)
    each = [[value] * rank for value in (kind.stride, pad, 1, 0)]
    parameters = (*each[:3], kind.up, each[3], kind.groups)
    sizes = (result, image, weight) if backward else (image, weight)
    return Case("", dtype, DEVICE, sizes, parameters, (True, True) if backward else None)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, a line as soon as it is measured; write JSON to --out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolutions", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS), help="kinds, by name")
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=["bfloat16", "float16", "tf32", "float32"])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--seconds", type=float, default=0.05, help="of measuring per convolution and layout")
    parser.add_argument("--out")
    args = parser.parse_args(argv)
    where = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{where}, torch {torch.__version__}; batch {args.batch}; us channels first, last, and how much faster last is"
    )
    rows = []
    for name in args.only:
        for kind in args.types:
            cells = []
            for backward in (False, True):
                with torch.backends.cudnn.flags(enabled=True, allow_tf32=kind == "tf32"):
                    case = make_case(KINDS[name], "float32" if kind == "tf32" else kind, backward, args.batch)
                    us = measure(case, args.seconds)
                rows.append({"kind": name, "type": kind, "backward": backward, "us": us, **asdict(KINDS[name])})
                cells.append(f"{us[0]:10.1f}{us[1]:10.1f}{us[0] / us[1]:7.2f}")
            print(f"{name:36}{kind:10}{cells[0]}   backward{cells[1]}", flush=True)
            if args.out:
                with open(args.out, "w") as file:
                    json.dump(
                        {"device": where, "torch": torch.__version__, "batch": args.batch, "rows": rows}, file, indent=1
                    )


if __name__ == "__main__":
    main()
