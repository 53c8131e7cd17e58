"""The little of the CUDA driver that launching a kernel takes: load a cubin, set its arguments, launch.

Through ctypes, on libcuda: torch has started the driver by then. What launches is a native module where there is one
(`native_launch`). Every argument is written into a slot of 8 bytes; a 32-bit parameter reads the lower half of its.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch

Grid = int | tuple[int, int, int]
"""Blocks along x, or along x, y and z."""

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
    """Returns the CUDA version that the driver supports: 1000 * major + 10 * minor."""
    found = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(found)), "cuDriverGetVersion")
    return found.value


def _make_current(device: int) -> None:
    """Make torch's context of the device this thread's: a thread that has not used CUDA yet has none."""
    _check(_driver().cuCtxSetCurrent(_context(device)), "cuCtxSetCurrent")


@cache
def _context(device: int) -> ctypes.c_void_p:
    """Torch's context of a device; the process keeps it, as its kernels stay loaded."""
    torch.cuda.init()
    context = ctypes.c_void_p()
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    return context


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded on a device.

    handle: the driver's. threads, shared: per block, the latter in bytes. arguments: how many a launch is given;
    parameters: how many the kernel has, of which those after the arguments are null.
    """

    name: str
    handle: int
    device: int
    threads: int
    shared: int
    arguments: int
    parameters: int


def load_function(
    cubin: bytes, name: str, device: int, threads: int, shared: int, arguments: int, parameters: int
) -> Function:
    """Returns kernel `name` of a cubin, loaded on `device`. The kernel is never unloaded, as work may be in flight."""
    driver = _driver()
    with torch.cuda.device(device):
        _make_current(device)
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver.cuModuleLoadData(ctypes.byref(module), cubin), f"loading {name}")
        _check(driver.cuModuleGetFunction(ctypes.byref(handle), module, name.encode()), f"finding {name}")
        if shared > _DEFAULT_SHARED:
            status = driver.cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, shared)
            _check(status, f"giving {name} {shared} bytes of shared memory")
    return Function(name, handle.value or 0, device, threads, shared, arguments, parameters)


def make_launch(function: Function, native: ModuleType | None) -> Callable[..., None]:
    """Returns `launch(grid, *values)`, which launches the kernel on torch's current stream.

    native: `native_launch.load`'s. A grid is a `Grid`. Values are ints of up to 64 bits, signed or not. TypeError for
    too few, too many or what is no int; OverflowError for a grid of 2**32 blocks; RuntimeError for what the driver
    refuses. Threads may call at once.
    """
    return _launch_by_ctypes(function) if native is None else _launch_natively(function, native)


def make_fixed_launch(
    function: Function,
    native: ModuleType,
    grid: int,
    aligned: Collection[int] = (),
    otherwise: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """Returns `launch(*values)`: `make_launch` for a grid that is always the same.

    aligned: positions of pointers to multiples of 16 bytes. Where one is none, `otherwise(*values)` is called instead.
    """
    masks = bytes(15 if n in aligned else 0 for n in range(function.arguments)) if aligned else None
    return _launch_natively(function, native, grid=grid, masks=masks, otherwise=otherwise)


def _launch_natively(function: Function, native: ModuleType, **more: Any) -> Callable[..., None]:
    """`native.Launch`, with what it calls when it could not launch: ctypes does it then, or it is an error."""
    slow = _launch_by_ctypes(function)

    def recover(status: int, grid: Grid, *values: int) -> None:
        if status and status != _INVALID_CONTEXT:
            _check(status, f"launching {function.name}")
        slow(grid, *values)

    launch: Callable[..., None] = native.Launch(
        ctypes.cast(_driver().cuLaunchKernel, ctypes.c_void_p).value,
        function.handle,
        function.threads,
        function.shared,
        function.arguments,
        function.parameters,
        function.device,
        torch._C._cuda_getDevice,
        torch._C._cuda_getCurrentRawStream,
        recover,
        **more,
    )
    return launch


def _launch_by_ctypes(function: Function) -> Callable[..., None]:
    device, arguments, parameters = function.device, function.arguments, max(1, function.parameters)
    slots = (ctypes.c_uint64 * parameters)()
    start = ctypes.addressof(slots)
    pointers = (ctypes.c_void_p * parameters)(*(start + 8 * n for n in range(parameters)))
    handle, threads, shared = function.handle, function.threads, function.shared
    launch_kernel = _driver().cuLaunchKernel
    stream_of = torch._C._cuda_getCurrentRawStream
    device_of = torch._C._cuda_getDevice
    lock = threading.Lock()

    def launch(grid: Grid, *values: int) -> None:
        if len(values) != arguments:
            raise TypeError(f"the kernel takes {arguments} arguments, {len(values)} were given")
        blocks = (grid, 1, 1) if isinstance(grid, int) else grid
        if any(extent >> 32 for extent in blocks):
            raise OverflowError(f"a grid of {grid} blocks")
        if device_of() != device:
            with torch.cuda.device(device):
                return launch(grid, *values)
        with lock:  # the slots are shared; the driver copies them before it returns
            slots[:arguments] = values  # type: ignore[call-overload]
            status = launch_kernel(handle, *blocks, threads, 1, 1, shared, stream_of(device), pointers, None)
            if status == _INVALID_CONTEXT:
                _make_current(device)
                status = launch_kernel(handle, *blocks, threads, 1, 1, shared, stream_of(device), pointers, None)
        if status:
            _check(status, f"launching {function.name}")

    return launch
