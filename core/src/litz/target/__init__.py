"""Targets: each device as data. Imports nothing of litz but the plugins' records.

In: a torch device and the compile's options, or the name of a GPU. Out: a `Target`, which every pass, cost model and
code generator reads. `figures/` has a data file for each device, which `data` reads; `calibration` reads what was
measured here.
"""

from .calibration import CalibrationError, DeviceCalibration, load_calibration
from .data import CacheFigures, FiguresError, Room, figure_of, figures_of
from .describe import (
    UnknownDeviceError,
    cpu_target,
    cuda_target,
    describe_cpu,
    describe_cuda,
    describe_meta,
    make_target,
    rate_kind,
    target_named,
    target_of,
)
from .warp_lines import warp_lines

__all__ = [
    "CacheFigures",
    "CalibrationError",
    "DeviceCalibration",
    "FiguresError",
    "Room",
    "UnknownDeviceError",
    "cpu_target",
    "cuda_target",
    "describe_cpu",
    "describe_cuda",
    "describe_meta",
    "figure_of",
    "figures_of",
    "load_calibration",
    "make_target",
    "rate_kind",
    "target_named",
    "target_of",
    "warp_lines",
]
