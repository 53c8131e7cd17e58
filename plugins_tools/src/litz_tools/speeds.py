"""The speeds of a device that is present. In: the device. Out: figures by name, as a calibration file has them.

Bandwidth (copying a tensor far larger than the caches), what a kernel adds to a stream (many small ones in a row), and
matmul rates by dtype (large square matrices). Rates of the ordinary units stay the data file's: no loop is as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from litz.target import target_of

from .clock import median_seconds, recorded
from .errors import MeasuringError

_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_LEAST_EDGE = 256
"""Rows of the smallest square matrix that is multiplied: a processor without half types takes long for larger ones."""
_ENOUGH_SECONDS = 0.02


def check_present(device: torch.device) -> None:
    """Errors: MeasuringError if a device is not here, or nobody knows how to measure it."""
    if device.type not in ("cpu", "cuda"):
        raise MeasuringError(f"only cpu and cuda devices are measured, not {device}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise MeasuringError("there is no CUDA device to measure")


def measure_speeds(device: torch.device, quick: bool = False) -> Mapping[str, float]:
    """Returns the figures of one round: "bandwidth_gb_s", "launch_us", "matrix_tflops.bf16". quick: smaller tensors
    and fewer runs, for tests and small machines. Errors: MeasuringError."""
    check_present(device)
    figures = {"bandwidth_gb_s": _bandwidth(device, quick), "launch_us": _launch(device, quick)}
    for kind, dtype in _DTYPES.items():
        figures[f"matrix_tflops.{kind}"] = _matmul_rate(device, dtype, quick)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        figures["matrix_tflops.tf32"] = _tf32_rate(device, quick)
    return figures


def _bandwidth(device: torch.device, quick: bool) -> float:
    """GB/s of copying, bytes read and written, on tensors far larger than the caches."""
    size = 2**24 if quick else 2**30 if device.type == "cuda" else 2**28
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), target_of(device), 5 if quick else 8) / 1e9


def _launch(device: torch.device, quick: bool) -> float:
    """µs that a tiny kernel takes in a row of them.

    A row is recorded as a CUDA graph where that can be, so that the time is the GPU's and not the host's.
    """
    count = 20 if quick else 200
    x = torch.zeros(1024, device=device)

    def row() -> None:
        for _ in range(count):
            x.add_(1.0)

    target = target_of(device)
    return median_seconds(recorded(row, target), target, 10) / count * 1e6


def _matmul_rate(device: torch.device, dtype: torch.dtype, quick: bool) -> float:
    """TFLOP/s of a square matmul: of a large one, or of the first that takes long enough for the clock by far."""
    most = _LEAST_EDGE if quick else 1024 if device.type == "cpu" else 4096 if dtype == torch.float64 else 8192
    target, edge, seconds = target_of(device), _LEAST_EDGE // 2, 0.0
    while edge < most and seconds < _ENOUGH_SECONDS:
        edge *= 2
        left, right = (torch.randn(edge, edge, device=device).to(dtype) for _ in range(2))
        out = torch.empty(edge, edge, device=device, dtype=dtype)
        run = partial(torch.mm, left, right, out=out)
        seconds = median_seconds(run, target, 1)
    if seconds < 10 * _ENOUGH_SECONDS:
        seconds = median_seconds(run, target, 3 if quick else 5)
    return float(2 * edge**3 / seconds / 1e12)


def _tf32_rate(device: torch.device, quick: bool) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _matmul_rate(device, torch.float32, quick)
    finally:
        torch.set_float32_matmul_precision(before)
