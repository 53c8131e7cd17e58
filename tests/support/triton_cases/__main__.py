"""`python -m support.triton_cases SHARD OF [NAME ...]` prints what went wrong, by case, as JSON."""

from __future__ import annotations

import json
import sys

import torch

from . import interpret_cases, interpreted_names

if __name__ == "__main__":
    shard, shards = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    chosen = (sys.argv[3:] or interpreted_names())[shard::shards]
    print(json.dumps(interpret_cases(chosen)))
