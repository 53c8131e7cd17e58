"""What operations cost: a roofline from a device table or a calibration file.

In: an operation, its Program and a `DeviceInfo`. Out: an `Estimate`. Behind the hook `litz_estimate_runtime` as the
built-in plugin `Roofline`; whatever another plugin answers goes before it.

    info = device_info(torch.device("cuda"), options)   # quick when asked again
    estimate(operation, info, program)                  # core's own answer
    count_work(operation, program)                      # FLOPs and bytes, for a model of one's own
    speeds_of(info)                                     # units, cache, bandwidth, launch time, rates
    machine(torch.device("cuda"), options)              # the same as the scheduler wants it
"""

from .calibration import Calibration, CalibrationError, DeviceCalibration, load_calibration, save_calibration
from .plugin import Roofline
from .roofline import estimate, estimate_work
from .scheduling import machine
from .speeds import Speeds, device_info, speeds_of
from .work import Work, count_work

__all__ = [
    "Calibration",
    "CalibrationError",
    "DeviceCalibration",
    "Roofline",
    "Speeds",
    "Work",
    "count_work",
    "device_info",
    "estimate",
    "estimate_work",
    "load_calibration",
    "machine",
    "save_calibration",
    "speeds_of",
]
