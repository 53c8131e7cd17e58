"""A machine without a GPU, whatever this one has: tests that need none have to mean the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def gpu_hidden() -> Iterator[None]:
    """Inside, torch finds no GPU, nor does a process that is started; litz plans for the GPU that it then assumes.

    Costs nothing where there is none. What has used a GPU before may go on using it.
    """
    import torch  # late: pytest's configuration sets what torch reads when it is loaded

    # Looking makes the driver note which devices there are: what the environment says from here on is for others.
    if not torch.cuda.is_available():
        yield
        return
    with (
        mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""),
        mock.patch.object(torch.cuda, "is_available", lambda: False),
        mock.patch.object(torch.cuda, "device_count", lambda: 0),
    ):
        _forget_devices()
        try:
            yield
        finally:
            _forget_devices()


def _forget_devices() -> None:
    """Empty what litz keeps of its looks at devices."""
    from litz.target import describe

    describe._cuda_target_here.cache_clear()
