"""Which cases there are. In: names and dtypes. Out: Jobs (an operator in a dtype), each with its Cases.

A case is one sample of torch.testing's op_db, compiled with `dynamic` False or True. Samples are made anew where they
are run, from a seed that depends on the operator and dtype only, so that a case's name says all about it.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool),
    *(torch.uint8, torch.int8, torch.complex64),
)
LOOKED_AT = 200
"""The most samples of an operator that are run: some have over a thousand."""


@dataclass(frozen=True)
class Job:
    """An operator in a dtype, on a device."""

    op: str
    dtype: torch.dtype
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.op}/{str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Case:
    """One sample of a job. train: with gradients, forward and backward."""

    job: Job
    sample: int
    dynamic: bool
    train: bool

    def __str__(self) -> str:
        return f"{self.job}/{self.sample}/{'dynamic' if self.dynamic else 'static'}/{'train' if self.train else 'run'}"


@functools.cache
def op_table() -> dict[str, Any]:
    """Returns torch.testing's OpInfos by full name ("add", "sum_to_size", "div.floor_rounding")."""
    from torch.testing._internal.common_methods_invocations import op_db

    # Random operators come wrapped in a function that sets the seed, at which dynamo would leave them to eager.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            vars(module)["wrapper_set_seed"] = _unseeded
    return {_full_name(op): op for op in op_db}


def _unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def jobs(dtypes: Sequence[torch.dtype] = DTYPES, only: str | None = None, device: str = "cpu") -> list[Job]:
    """Returns a job for each operator and each of `dtypes` that it supports. only: a regular expression for names."""
    wanted = re.compile(only) if only else None
    return [
        Job(name, dtype, device)
        for dtype in dtypes
        for name, op in op_table().items()
        if dtype in op.supported_dtypes(torch.device(device).type) and (wanted is None or wanted.search(name))
    ]


def differentiable(job: Job) -> bool:
    """Returns whether the operator has a backward in this dtype."""
    op = op_table()[job.op]
    return bool(
        job.dtype.is_floating_point
        and op.supports_autograd
        and job.dtype in op.supported_backward_dtypes(torch.device(job.device).type)
    )


def samples(job: Job, count: int, train: bool) -> dict[int, Any]:
    """Returns `count` of the operator's samples by position, spread over those that it has."""
    from torch.testing._internal import common_utils

    torch.manual_seed(zlib.crc32(str(job).encode()))
    # There is no unittest around this, to look for which torch would read the source of each frame on the stack.
    with mock.patch.object(common_utils, "extract_test_fn", lambda: None):
        found: Iterable[Any] = op_table()[job.op].sample_inputs(job.device, job.dtype, requires_grad=train)
        every = list(itertools.islice(iter(found), LOOKED_AT))
    return {position: every[position] for position in spread(len(every), count)}


def spread(total: int, count: int) -> list[int]:
    """Returns `count` positions of `total`, the first and the last among them; the first alone if `count` is 1."""
    if count >= total:
        return list(range(total))
    if count == 1:
        return [0]
    return sorted({round(n * (total - 1) / (count - 1)) for n in range(count)})


def cases(job: Job, positions: Iterable[int], dynamic: Sequence[bool], train: bool) -> Iterator[Case]:
    """Yields the cases of a job."""
    for mode in dynamic:
        for position in positions:
            yield Case(job, position, mode, train)
