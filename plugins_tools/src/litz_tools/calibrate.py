"""Measures the present device and writes a calibration file. In: a device. Out: `DeviceCalibration`, and JSON.

    python -m litz_tools.calibrate --out calibration.json [--device cuda] [--device cpu] [--quick]

Then `options={"calibration": "calibration.json"}` or LITZ_CALIBRATION=calibration.json. Takes about ten seconds a
device. What is measured: bandwidth (copying a tensor far larger than the caches), what a kernel adds to a stream (many
small ones in a row), and matmul rates by dtype (large square matrices). Rates of the ordinary units stay the table's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from litz.target import DeviceCalibration, save_calibration, target_of

from .clock import median_seconds, recorded

_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def calibrate(device: torch.device | str, quick: bool = False) -> DeviceCalibration:
    """Measures a device that is present, and returns the figures, each to four significant digits. quick: smaller
    tensors and fewer runs, for tests and small machines.

    Errors: RuntimeError if there is no such device.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"only cpu and cuda devices are measured, not {device}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device to measure")
    name = torch.cuda.get_device_properties(device).name if device.type == "cuda" else ""
    figures = {
        "bandwidth_gb_s": _bandwidth(device, quick),
        "launch_us": _launch(device, quick),
    }
    for kind, dtype in _DTYPES.items():
        figures[f"matrix_tflops.{kind}"] = _matmul_rate(device, dtype, quick)
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        figures["matrix_tflops.tf32"] = _tf32_rate(device, quick)
    rounded = {key: float(f"{value:.4g}") for key, value in figures.items()}
    when = time.strftime("%Y-%m-%d")
    return DeviceCalibration(device.type, name, rounded, f"{when}, torch {torch.__version__}")


def _bandwidth(device: torch.device, quick: bool) -> float:
    """GB/s of copying, bytes read and written, on tensors far larger than the caches."""
    size = 2**24 if quick else 2**30 if device.type == "cuda" else 2**28
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), target_of(device), 5 if quick else 20) / 1e9


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
    """TFLOP/s of a large square matmul."""
    edge = 256 if quick else 1024 if device.type == "cpu" else 4096 if dtype == torch.float64 else 8192
    left = torch.randn(edge, edge, device=device).to(dtype)
    right = torch.randn(edge, edge, device=device).to(dtype)
    out = torch.empty(edge, edge, device=device, dtype=dtype)
    seconds = median_seconds(lambda: torch.mm(left, right, out=out), target_of(device), 3 if quick else 10)
    return 2 * edge**3 / seconds / 1e12


def _tf32_rate(device: torch.device, quick: bool) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _matmul_rate(device, torch.float32, quick)
    finally:
        torch.set_float32_matmul_precision(before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the devices that the command line names, and writes the figures to a file. Returns the exit status, 1 if
    a device cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m litz_tools.calibrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument(
        "--device", action="append", help="device to measure; default: the GPU if there is one, else cpu"
    )
    parser.add_argument("--quick", action="store_true", help="small tensors: rough figures in a second")
    given = parser.parse_args(arguments)
    devices = given.device or ["cuda" if torch.cuda.is_available() else "cpu"]
    try:
        measured = tuple(calibrate(device, given.quick) for device in devices)
    except RuntimeError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    save_calibration(given.out, measured)
    for device in measured:
        print(f"{device.name or device.type}: {device.measured}")
        for key, value in device.figures.items():
            print(f"  {key:24} {value:g}")
    print(f"written to {given.out}; use it with LITZ_CALIBRATION={given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
