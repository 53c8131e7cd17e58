"""Launching CUDA kernels with no GPU: the driver is a recorder, whose `cuLaunchKernel` is a C function all the same."""

from __future__ import annotations

import ctypes
import gc
import operator
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from litz.cache.disk import Cache
from litz.runtime import native_build
from litz.targets.triton import cuda_driver, native_launch
from litz.targets.triton.build import Binary, Launcher
from litz.targets.triton.compile import Variant
from litz.targets.triton.cuda_driver import Function, make_fixed_launch, make_launch
from litz_plugins import KernelSource

STREAM = 2**63 + 64
POINTER, HIGH, NEGATIVE = 0x7F00_0000_0200, 2**64 - 256, -3

pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, pointer, *[unsigned] * 7, pointer, ctypes.POINTER(pointer), pointer)


@dataclass
class Machine:
    """A driver and torch's state of it. launches: (handle, grid, threads, shared, stream, values, device) of each."""

    parameters: int = 4
    device: int = 0
    statuses: list[int] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    current: list[int] = field(default_factory=list)
    guards: list[int] = field(default_factory=list)
    loaded: int = 0

    def __post_init__(self) -> None:
        self.cuLaunchKernel = LAUNCH(self._launch)

    def _launch(self, handle: int, *rest: Any) -> int:
        grid, one, two, threads, three, four, shared, stream, places, extra = rest
        assert (three, four, extra) == (1, 1, None)
        grid = grid if (one, two) == (1, 1) else (grid, one, two)
        values = [ctypes.c_uint64.from_address(places[n]).value for n in range(self.parameters)]
        self.launches.append((handle, grid, threads, shared, stream, values, self.device))
        return self.statuses.pop(0) if self.statuses else 0

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:
        return 0

    def cuModuleGetFunction(self, handle: Any, module: Any, name: bytes) -> int:
        self.loaded += 1
        handle._obj.value = self.loaded
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 1 + device
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.current.append(context.value - 1)
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_%d" % status
        return 0

    cuGetErrorString = cuGetErrorName

    @contextmanager
    def guard(self, device: int) -> Iterator[None]:
        self.guards.append(device)
        kept, self.device = self.device, device
        yield
        self.device = kept


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    cuda_driver._context.cache_clear()
    monkeypatch.setattr(cuda_driver, "_driver", lambda: machine)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: machine.device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM + device, raising=False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", machine.guard)
    return machine


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    module = native_launch.load_library(native_launch.build(None, Cache(tmp_path_factory.mktemp("native"))))
    assert module is not None
    return module


@pytest.fixture(params=["native", "ctypes"])
def module(request: pytest.FixtureRequest) -> ModuleType | None:
    """What launches: both do the same."""
    return request.getfixturevalue("native") if request.param == "native" else None


def _function(machine: Machine, arguments: int = 3, device: int = 0) -> Function:
    return Function("norm", 77, device, 256, 1024, arguments, machine.parameters)


def test_a_launch_passes_everything_on(machine: Machine, module: ModuleType | None) -> None:
    values = (POINTER, HIGH, NEGATIVE)
    for grid in (9, 2**31 - 1, 2**32 - 1):
        assert make_launch(_function(machine), module)(grid, *values) is None
        slots = [POINTER, HIGH, 2**64 - 3, 0]  # what is after the arguments is null
        wanted = [(77, grid, 256, 1024, STREAM, slots, 0)]
        if module is not None:
            assert make_fixed_launch(_function(machine), module, grid)(*values) is None
            wanted *= 2
        assert machine.launches[-len(wanted) :] == wanted
    assert not machine.guards


def test_a_kernel_without_arguments_and_one_with_many(machine: Machine, module: ModuleType | None) -> None:
    for count in (0, 200):
        machine.parameters = count
        make_launch(_function(machine, count), module)(1, *range(count))
        assert machine.launches[-1][5] == list(range(count))


def test_a_grid_of_three_extents(machine: Machine, module: ModuleType | None) -> None:
    launch = make_launch(_function(machine), module)
    launch((7, 5, 3), 1, 2, 3)
    machine.statuses = [201]  # no context: it is launched again, with the same grid
    launch((7, 5, 3), 1, 2, 3)
    launch((7, 1, 1), 1, 2, 3)
    assert [launched[1] for launched in machine.launches] == [(7, 5, 3)] * 3 + [7]
    with pytest.raises(OverflowError):
        launch((1, 2**32, 1), 1, 2, 3)
    if module is not None:
        with pytest.raises(TypeError, match="3 extents"):
            launch((1, 2), 1, 2, 3)


def test_a_fixed_launch_has_no_python_between(machine: Machine, native: ModuleType) -> None:
    launch = make_fixed_launch(_function(machine), native, 5)
    assert type(launch) is native.Launch
    assert type(make_launch(_function(machine), native)) is native.Launch


def test_another_device_is_made_current_for_the_launch(machine: Machine, module: ModuleType | None) -> None:
    make_launch(_function(machine, device=1), module)(5, 1, 2, 3)
    count = 1
    if module is not None:
        make_fixed_launch(_function(machine, device=1), module, 5)(1, 2, 3)
        count = 2
    assert machine.launches == [(77, 5, 256, 1024, STREAM + 1, [1, 2, 3, 0], 1)] * count
    assert machine.guards == [1] * count and machine.device == 0


def test_a_thread_without_a_context_is_given_one(machine: Machine, module: ModuleType | None) -> None:
    machine.statuses = [201] * (1 if module is None else 2)
    make_launch(_function(machine), module)(5, 1, 2, 3)
    assert machine.current == [0] and machine.launches[-1][5] == [1, 2, 3, 0]
    tries = len(machine.launches)
    make_launch(_function(machine), module)(5, 1, 2, 3)
    assert len(machine.launches) == tries + 1


def test_what_the_driver_refuses_is_an_error_with_names(machine: Machine, module: ModuleType | None) -> None:
    launch = make_launch(_function(machine), module)
    runs: list[Callable[[], None]] = [lambda: launch(5, 1, 2, 3)]
    if module is not None:
        fixed = make_fixed_launch(_function(machine), module, 5)
        runs.append(lambda: fixed(1, 2, 3))
    for run in runs:
        machine.statuses, machine.launches = [719], []
        with pytest.raises(RuntimeError, match="CUDA error in launching norm: CUDA_ERROR_719"):
            run()
        assert len(machine.launches) == 1  # it may have run: not again


@pytest.mark.parametrize("wrong", [(16, 32), (16, 32, 48, 64), (), (16.0, 32, 48), (16, None, 48), (16, 32, "3")])
def test_wrong_arguments(machine: Machine, module: ModuleType | None, wrong: tuple[Any, ...]) -> None:
    launches: list[Callable[..., None]] = [lambda *values: make_launch(_function(machine), module)(5, *values)]
    if module is not None:
        launches.append(make_fixed_launch(_function(machine), module, 5))
        launches.append(make_fixed_launch(_function(machine), module, 5, [0, 1, 2], lambda *values: None))
    for launch in launches:
        with pytest.raises(TypeError):
            launch(*wrong)
        with pytest.raises(TypeError):
            launch(1, 2, z=3)
    assert not machine.launches


def test_wrong_grids(machine: Machine, module: ModuleType | None) -> None:
    launch = make_launch(_function(machine), module)
    for grid, error in ((2**32, OverflowError), (-1, OverflowError), (2**70, OverflowError), (1.5, TypeError)):
        with pytest.raises(error):
            launch(grid, 1, 2, 3)
    assert not machine.launches


def test_a_misaligned_pointer_goes_elsewhere(machine: Machine, native: ModuleType) -> None:
    seen: list[tuple[int, ...]] = []
    launch = make_fixed_launch(_function(machine), native, 5, [0, 2], lambda *values: seen.append(values))
    launch(16, 7, 2**63 + 32)
    assert not seen and machine.launches[-1][5] == [16, 7, 2**63 + 32, 0]
    launch(24, 16, 16)
    launch(16, 16, 2**63 + 33)
    assert seen == [(24, 16, 16), (16, 16, 2**63 + 33)] and len(machine.launches) == 1


def test_an_error_of_what_is_called_is_passed_on(native: ModuleType) -> None:
    def fails(*args: Any) -> int:
        raise KeyError("gone")

    def launch(device_of: Any, stream_of: Any) -> Any:
        return native.Launch(1, 1, 32, 0, 1, 1, 0, device_of, stream_of, fails)

    for device_of, stream_of in ((fails, int), (lambda: 0, fails), (lambda: 1, int)):
        with pytest.raises(KeyError):
            launch(device_of, stream_of)(1, 2)
    for device_of, stream_of in ((lambda: "0", int), (lambda: 0, str)):
        with pytest.raises(TypeError):
            launch(device_of, stream_of)(1, 2)


def test_what_cannot_be_made_is_refused(native: ModuleType) -> None:
    parts = (1, 1, 32, 0)
    for counts in ((3, 2), (-1, 2), (1, 5000)):
        with pytest.raises(ValueError, match="parameters"):
            native.Launch(*parts, *counts, 0, int, int, print)
    for masks in ({"masks": b"\x0f", "otherwise": print}, {"masks": b"\x0f\x0f"}, {"masks": "ab", "otherwise": print}):
        with pytest.raises(ValueError, match="masks"):
            native.Launch(*parts, 2, 2, 0, int, int, print, **masks)
    with pytest.raises(OverflowError):
        native.Launch(*parts, 2, 2, 0, int, int, print, grid=2**40)


def test_threads_do_not_mix_their_arguments(machine: Machine, module: ModuleType | None) -> None:
    machine.parameters = 3
    launch, threads, each = make_launch(_function(machine), module), 4, 200
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [
            threading.Thread(target=lambda t=t: [launch(t + 1, t, n, t * n) for n in range(each)])
            for t in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    wanted = sorted((t + 1, [t, n, t * n]) for t in range(threads) for n in range(each))
    assert sorted((grid, values) for _, grid, _, _, _, values, _ in machine.launches) == wanted


def test_other_threads_run_while_the_driver_waits(native: ModuleType) -> None:
    """The C library's usleep, of as many microseconds as the function's handle, is the driver here."""
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    launch = native.Launch(sleep, 400_000, 32, 0, 0, 0, 0, int, operator.index, print, grid=1)
    worker = threading.Thread(target=launch)
    start = time.monotonic()
    worker.start()
    time.sleep(0.01)  # comes back only with Python's lock
    seen, alive = time.monotonic() - start, worker.is_alive()
    worker.join()
    assert alive and seen < 0.3 < time.monotonic() - start


def test_nothing_is_leaked(native: ModuleType) -> None:
    status = ctypes.CFUNCTYPE(ctypes.c_int)
    address = {n: status(lambda n=n: n) for n in (0, 5)}

    def recover(status: int, grid: int, *values: int) -> None:
        assert (status, grid) in ((5, 3), (0, 3))

    def make(n: int, device: int = 0, **more: Any) -> Any:
        place = ctypes.cast(address[n], ctypes.c_void_p).value
        return native.Launch(place, 1, 32, 0, 2, 3, device, int, operator.index, recover, grid=3, **more)

    launches = [make(0), make(5), make(0, device=1), make(0, masks=b"\x0f\x0f", otherwise=recover)]
    values = (2**40 + 5, 2**63 + 48)
    launches[3] = make(0, masks=b"\x0f\x0f", otherwise=lambda *values: None)

    def use() -> None:
        for launch in launches:
            for _ in range(200):
                launch(*values)
            for wrong in ((1,), (1, None)):
                with pytest.raises(TypeError):
                    launch(*wrong)

    use()
    held = [recover, *values, None, int, operator.index]
    before = [sys.getrefcount(one) for one in held]
    tracemalloc.start()
    try:
        use()
        first = tracemalloc.get_traced_memory()[0]
        use()
        second = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert second - first < 2000  # 1600 launches: one int leaked by each would be 50 KB
    after = [sys.getrefcount(one) for one in held]
    assert all(abs(new - old) < 50 for new, old in zip(after, before)), (before, after)


def test_a_launch_is_freed_with_what_it_holds_also_out_of_a_cycle(native: ModuleType) -> None:
    def make() -> tuple[Any, dict[str, Any]]:
        scope: dict[str, Any] = {}

        def recover(*args: Any) -> dict[str, Any]:
            return scope

        launch = native.Launch(1, 1, 32, 0, 1, 1, 0, int, int, recover, masks=b"\x0f", otherwise=recover)
        return weakref.ref(recover), scope | {"launch": launch}

    gone, scope = make()
    assert gone() is not None
    scope.clear()
    gc.collect()
    assert gone() is None

    gone, scope = make()
    inner = gone()()  # recover's own scope
    inner["launch"] = scope["launch"]  # launch -> recover -> scope -> launch
    del inner, scope
    assert gone() is not None
    gc.collect()
    assert gone() is None


# Variants and grids: `Launcher` over it.


def _launcher(
    module: ModuleType | None, grid: int | str, sizes: int = 0, scratch: int = 0, **settings: Any
) -> Callable[..., None]:
    arguments = ("p0", "p1", *range(sizes))
    found = {"grid": grid, "sizes": sizes, "unaligned": [], "limits": [], "limit": 2**31, "pointers": ["*fp32"] * 2}
    source = KernelSource("norm", "triton", "", "norm", arguments, {**found, **settings})

    def binary(variant: Variant) -> Binary:
        return Binary(b"", "norm", 256, 0, 4, scratch)

    return Launcher(source, 0, binary, Variant(True, sizes > 0), lambda: module).function


def test_a_static_grid_needs_no_python(machine: Machine, native: ModuleType) -> None:
    function = _launcher(native, 12)
    assert type(function) is native.Launch
    function(16, 32)
    assert machine.launches[-1][:2] == (1, 12) and machine.launches[-1][5] == [16, 32, 0, 0]


def test_nothing_to_do(machine: Machine, module: ModuleType | None) -> None:
    _launcher(module, 0)(16, 32)
    _launcher(module, "s0", sizes=1)(16, 32, 0)
    assert not machine.launches


def test_alignment_chooses_the_variant_of_a_static_grid(machine: Machine, module: ModuleType | None) -> None:
    function = _launcher(module, 12, unaligned=[1])
    for last in (32, 40, 48, 52):
        function(24, last)
    assert [(handle, grid) for handle, grid, *_ in machine.launches] == [(1, 12), (2, 12), (1, 12), (2, 12)]
    assert [values[:2] for *_, values, _ in machine.launches] == [[24, last] for last in (32, 40, 48, 52)]
    assert machine.loaded == 2


def test_sizes_choose_grid_and_variant(machine: Machine, module: ModuleType | None) -> None:
    function = _launcher(module, "-(-s0 // 64)", sizes=1, unaligned=[0], limits=["s0"])
    for first, size in ((16, 128), (16, 130), (8, 128), (16, 2**32), (16, 256)):
        function(first, 32, size)
    handles = [handle for handle, *_ in machine.launches]
    assert handles == [1, 2, 3, 4, 1]
    assert [grid for _, grid, *_ in machine.launches] == [2, 3, 2, 2**26, 4]
    assert machine.launches[1][5] == [16, 32, 130, 0]


def test_scratch_memory_is_the_last_argument(
    machine: Machine, module: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    empty = torch.empty

    def recorded(nbytes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append(nbytes)
        return empty(nbytes, dtype=dtype)

    monkeypatch.setattr("litz.targets.triton.build.torch.empty", recorded)
    _launcher(module, 12, scratch=128)(16, 32)
    values = machine.launches[-1][5]
    assert asked == [12 * 128] and values[:2] == [16, 32] and values[2] > 0 and values[3] == 0


# Building.


def test_it_is_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    path = native_launch.build(None, cache)
    assert (cache.misses, cache.hits) == (1, 0) and path.name == native_launch.library_name()
    monkeypatch.setattr(native_build, "compile_library", None)  # nothing is compiled from here on
    again = Cache(tmp_path)
    assert native_launch.build(None, again) == path and (again.misses, again.hits) == (0, 1)
    monkeypatch.delitem(sys.modules, f"{native_launch.NAME}@", raising=False)
    first = native_launch.load(None, again)
    assert first is not None and native_launch.load(None, Cache(tmp_path / "other")) is first


def test_one_thread_prepares_it_and_no_other_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def find(compiler: str | None, cache: Cache) -> None:
        calls.append(compiler)
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(native_launch, "find", find)
    monkeypatch.delitem(sys.modules, f"{native_launch.NAME}@nobody", raising=False)
    worker = threading.Thread(target=native_launch.prepare, args=("nobody", Cache(tmp_path)))
    worker.start()
    assert begun.wait(10)
    native_launch.prepare("nobody", Cache(tmp_path))  # comes back at once
    assert worker.is_alive()
    go_on.set()
    assert native_launch.load("nobody", Cache(tmp_path)) is None and calls == ["nobody"]
    worker.join()
    del sys.modules[f"{native_launch.NAME}@nobody"]


def test_without_a_compiler_there_is_no_module_and_it_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-g++"
    broken.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = --version ] && echo broken 1.0\n')
    broken.chmod(0o755)
    monkeypatch.delitem(sys.modules, f"{native_launch.NAME}@{broken}", raising=False)
    for _ in range(3):
        assert native_launch.load(str(broken), Cache(tmp_path / "cache")) is None
    assert [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()] == ["--version", "-std=c++17"]
    del sys.modules[f"{native_launch.NAME}@{broken}"]
    assert native_launch.find("/opt/no-such-compiler", Cache(tmp_path / "cache")) is None


def test_a_file_that_is_not_ours(tmp_path: Path) -> None:
    junk = tmp_path / native_launch.library_name()
    junk.write_bytes(b"\x7fELF not")
    assert native_launch.load_library(junk) is None
