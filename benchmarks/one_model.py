"""One model of the zoo, step after step, with litz: a script for `litz bisect` and `litz explain`.

litz bisect --clock kernels --against inductor -m benchmarks.one_model resnet50 --task small
litz bisect --wrong --against eager -m benchmarks.one_model gpt2 --task training
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.zoo import ZOO
from benchmarks.zoo_step import MODES, TASKS, make_peer_step, make_subject, subject_patches


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_model", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(ZOO), metavar="MODEL", help=", ".join(sorted(ZOO)))
    parser.add_argument("--task", choices=TASKS, default="inference")
    parser.add_argument("--mode", choices=MODES, default="default")
    parser.add_argument("--steps", type=int, default=30)
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument(
        "--small", action="store_true", default=not gpu, help="the size for a CPU, which is the default there"
    )
    args = parser.parse_args()
    subject = make_subject(ZOO[args.model], args.task, torch.device(args.device), args.small)
    step = make_peer_step(subject, "litz", args.mode)
    with subject_patches(subject.model):
        for _ in range(args.steps):
            step()


if __name__ == "__main__":
    main()
