"""Targets: each device as data. Imports nothing of litz but the plugins' records.

In: a torch device and the compile's options, or the name of a GPU. Out: a `Target`, which every pass, cost model and
code generator reads. `devices` is the table of datasheets, `calibration` reads what was measured.
"""

from .calibration import CalibrationError, DeviceCalibration, load_calibration, save_calibration
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
from .devices import LINE, SECTOR
from .warp_lines import CACHE, warp_lines

__all__ = [
    "CACHE",
    "LINE",
    "SECTOR",
    "CalibrationError",
    "DeviceCalibration",
    "UnknownDeviceError",
    "cpu_target",
    "cuda_target",
    "describe_cpu",
    "describe_cuda",
    "describe_meta",
    "load_calibration",
    "make_target",
    "rate_kind",
    "save_calibration",
    "target_named",
    "target_of",
    "warp_lines",
]
