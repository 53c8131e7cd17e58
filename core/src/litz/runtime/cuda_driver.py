"""The little of the CUDA driver that launching a kernel takes: load a cubin, set its arguments, launch.

Through ctypes, on libcuda: torch has started the driver by then, and a launch costs about two microseconds of host
time. Every argument is written into a slot of 8 bytes; a 32-bit parameter reads the lower half of its slot.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_INVALID_CONTEXT = 201
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEFAULT_SHARED = 48 * 1024


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    unsigned, pointer = ctypes.c_uint, ctypes.c_void_p
    library.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    return library


def _check(status: int, what: str) -> None:
    if status == 0:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    _driver().cuGetErrorName(status, ctypes.byref(name))
    _driver().cuGetErrorString(status, ctypes.byref(text))
    detail = f"{(name.value or b'').decode()} ({(text.value or b'unknown error').decode()})"
    raise RuntimeError(f"CUDA error in {what}: {detail}")


def driver_version() -> int:
    """The CUDA version that the driver supports: 1000 * major + 10 * minor."""
    found = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(found)), "cuDriverGetVersion")
    return found.value


def _make_current(device: int) -> None:
    """Make torch's context of the device this thread's: a thread that has not used CUDA yet has none."""
    torch.cuda.init()
    driver, context = _driver(), ctypes.c_void_p()
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def load_function(
    cubin: bytes, name: str, device: int, threads: int, shared: int, arguments: int, parameters: int
) -> Callable[[int, tuple[int, ...]], None]:
    """A function that launches kernel `name` of the cubin: `launch(grid, arguments)` on torch's current stream.

    threads, shared: per block, the latter in bytes. arguments: how many the caller passes; parameters: how many the
    kernel has, of which those after the arguments are null.
    """
    driver = _driver()
    with torch.cuda.device(device):
        _make_current(device)
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(module), cubin), f"loading {name}")
        _check(driver.cuModuleGetFunction(ctypes.byref(handle), module, name.encode()), f"finding {name}")
        if shared > _DEFAULT_SHARED:
            status = driver.cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, shared)
            _check(status, f"giving {name} {shared} bytes of shared memory")
    slots = (ctypes.c_uint64 * max(1, parameters))()
    start = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * max(1, parameters))(*(start + 8 * n for n in range(parameters)))
    launch_kernel = driver.cuLaunchKernel
    stream_of = torch._C._cuda_getCurrentRawStream
    device_of = torch._C._cuda_getDevice
    lock = threading.Lock()

    def launch(grid: int, values: tuple[int, ...]) -> None:
        if device_of() != device:
            with torch.cuda.device(device):
                return launch(grid, values)
        with lock:  # the slots are shared; the driver copies them before it returns
            slots[:arguments] = values  # type: ignore[call-overload]
            status = launch_kernel(handle, grid, 1, 1, threads, 1, 1, shared, stream_of(device), pointers, None)
            if status == _INVALID_CONTEXT:
                _make_current(device)
                status = launch_kernel(handle, grid, 1, 1, threads, 1, 1, shared, stream_of(device), pointers, None)
        if status:
            _check(status, f"launching {name}")

    # The module lives as long as the function that needs it. It is never unloaded: work may be in flight.
    launch.module = module  # type: ignore[attr-defined]
    return launch
