"""Targets: what this device is and can do. In: a torch device and options, or a name. Out: a `Target`.

`target_of` looks at the real device, torch's settings and the calibration file; `target_named` gives the datasheet's
row of a device that need not be here. Facts that the driver gives, by name:

| fact | is |
|---|---|
| `capability` | compute capability times ten |
| `units` | streaming multiprocessors |
| `clock_mhz`, `peak_bandwidth_gb_s`, `l2_bytes` | as the driver says, where it does |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from litz_plugins import SHARES, LitzError, OptionsView, Share, Target, unknown_target

from .calibration import Calibration, calibration_files, load_calibration, speeds_in
from .data import Room, device_file, figures_of
from .devices import DeviceSpec, all_specs, default_gpu, find_spec, nearest_family
from .processors import file_here, has_blas

_KINDS = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.uint8: "int8",
}

_OLDEST = 75
"""The compute capability times ten of a GPU that does not say and is not known: the oldest that Triton has code for."""

Describe = Callable[[torch.device, OptionsView | None], Target]


@dataclass(frozen=True)
class LaunchFigures(Room):
    """The time that a kernel takes however little it does, in µs."""

    table = "launch"
    launch_us: float


@dataclass(frozen=True)
class ProcessorFigures(Room):
    """A processor that nobody measured: rates and bandwidth of one thread, bytes of caches, the shares of these that
    kernels reach (best, usual, worst)."""

    table = "processor"
    launch_us: float
    fp32_gflops: float
    wide_share: float
    bandwidth_gb_s: float
    memory_share: tuple[float, float, float]
    loop_share: tuple[float, float, float]
    cache_bytes: int
    row_bytes: int
    most_buffers: int


def rate_kind(dtype: torch.dtype) -> str:
    """Returns the name of a dtype in a target's tables of rates; other integers and bool count as "int"."""
    if str(dtype).startswith("torch.float8"):
        return "fp8"
    return _KINDS.get(dtype, "int")


class UnknownDeviceError(LitzError):
    """No data file is for a device of this name."""


def target_named(name: str) -> Target:
    """Returns the target of a GPU by its driver's name or a part of it ("L4", "NVIDIA A100-SXM4-80GB"), as the
    datasheet has it, on no machine. Errors: UnknownDeviceError if no data file is for the name."""
    spec = find_spec(name)
    if spec is None:
        known = ", ".join(spec.name for spec in all_specs())
        raise UnknownDeviceError(f"{name!r} is not among the devices that have a data file: {known}")
    return cuda_target(name, {"capability": float(spec.capability)}, index=0)


def target_of(device: torch.device | str, options: OptionsView | None = None) -> Target:
    """Returns the target of a device as core describes it, for who has no compile (a compile asks `Compiler.target_of`,
    which knows plugins' targets too). A device that core does not know is an unknown one. Errors: CalibrationError."""
    device = torch.device(device)
    describe = _CORES.get(device.type, lambda device, options: unknown_target(device))
    return make_target(describe, device, options)


def make_target(describe: Describe, device: torch.device, options: OptionsView | None) -> Target:
    """Returns what `describe` says of a device, with the figures of the calibration file that the options name in place
    of its own. Errors: CalibrationError."""
    found = describe(device, options)
    path = options.get("calibration") if options is not None else None
    if path is None:
        return found
    return calibrated(found, _load_once(path, _changed(path)).figures(found.type, found.name))


@lru_cache(maxsize=8)
def _load_once(path: Path, changed: tuple[tuple[Path, int], ...]) -> Calibration:
    return load_calibration(path)


def _changed(path: Path) -> tuple[tuple[Path, int], ...]:
    """Returns each file with when it was last written, in ns, so that a new one is read; 0 if there is none."""
    return tuple((file, file.stat().st_mtime_ns if file.exists() else 0) for file in calibration_files(path))


def describe_cpu(device: torch.device, options: OptionsView | None = None) -> Target:
    """Returns the processor that this process runs on as a target, with as many threads as torch uses."""
    known = cpu_target(torch.get_num_threads())
    more = {"attention_blocks"} if has_blas() else set[str]()
    fewer_bits = _tf32_settings() & {"matmul"}  # cuDNN's setting for convolutions is not for processors
    more |= known.abilities
    return replace(known, file=file_here(), abilities=frozenset(more), tf32=fewer_bits)


def describe_cuda(device: torch.device, options: OptionsView | None = None) -> Target:
    """Returns the target of a CUDA device, from its driver's facts and torch's settings. Where there is no GPU, the
    target is that of a usual one (`default_gpu`), and is `assumed`."""
    return replace(_cuda_target_here(device), tf32=_tf32_settings())


def describe_meta(device: torch.device, options: OptionsView | None = None) -> Target:
    """Returns the target of meta tensors, which have no memory and run no kernels."""
    return Target("meta", source="tensors without memory", addressed=False)


_CORES: Mapping[str, Describe] = {"cpu": describe_cpu, "cuda": describe_cuda, "meta": describe_meta}


def _tf32_settings() -> frozenset[str]:
    """Returns the uses, "matmul" and "convolution", for which torch allows TF32 for float32."""
    try:
        allowed = {"matmul": torch.get_float32_matmul_precision() != "highest"}
        allowed["convolution"] = bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch's old and new settings contradict each other, and it says so
        return frozenset()
    return frozenset(use for use, may in allowed.items() if may)


def calibrated(target: Target, measured: Mapping[str, Any]) -> Target:
    """Returns a target with measured figures in place of its own. measured: by their names in a calibration file."""
    if not measured:
        return target
    rates = {"vector_tflops": dict(target.vector), "matrix_tflops": dict(target.matrix)}
    own: dict[str, Any] = {}
    for name, value in measured.items():
        table, _, kind = name.partition(".")
        if table == "figures":
            own[kind] = value
        if table in rates:
            rates[table][kind] = value * 1e6
    return replace(
        target,
        bandwidth=measured.get("bandwidth_gb_s", target.bandwidth / 1e3) * 1e3,
        launch_us=measured.get("launch_us", target.launch_us),
        vector=rates["vector_tflops"],
        matrix=rates["matrix_tflops"],
        figures=target.figures | own,
        source=f"measured; else {target.source}",
        measured=frozenset(measured),
        rough=target.rough and "bandwidth_gb_s" not in measured,
    )


@lru_cache(maxsize=16)
def cpu_target(threads: int) -> Target:
    """Returns the target of a processor that nobody measured, with AVX2 and DDR4. threads: how many it runs. What
    kernels reach of its best (`shares`): loops do one operation an instruction, and call functions for what has
    none."""
    known = figures_of(Target("cpu"), ProcessorFigures)
    fp32 = known.fp32_gflops * 1e3 * threads
    # Half types are converted to fp32 and back around every operation, unless the processor has units for them.
    rates = {"fp32": fp32, **dict.fromkeys(("fp64", "fp16", "bf16"), known.wide_share * fp32)}
    return Target(
        "cpu",
        source="generic CPU: AVX2 with two FMA units at 2.5 GHz, DDR4; measure with `litz calibrate`",
        rough=True,
        units=threads,
        bandwidth=known.bandwidth_gb_s * 1e3 * threads,
        launch_us=known.launch_us,
        vector=rates,
        matrix=dict(rates),
        shares={**SHARES, "memory": Share(*known.memory_share), "loop": Share(*known.loop_share)},
        cache_bytes=known.cache_bytes,
        row_bytes=known.row_bytes,
        line_bytes=64,
        most_buffers=known.most_buffers,
        abilities=frozenset({"float8", "library_windows"}),
        allocator="pool",
    )


@lru_cache(maxsize=16)
def _cuda_target_here(device: torch.device) -> Target:
    if not torch.cuda.is_available():
        name = default_gpu()
        spec = find_spec(name)
        assert spec is not None
        stand_in = cuda_target(name, {"capability": float(spec.capability)}, device.index)
        return replace(stand_in, assumed=True, source=f"no GPU here: taken for {spec.name}")
    properties = torch.cuda.get_device_properties(device)
    facts = {
        "capability": float(properties.major * 10 + properties.minor),
        "units": float(properties.multi_processor_count),
    }
    # Not every torch gives these; the clocks are in kHz, and memory transfers twice a clock.
    if l2_bytes := getattr(properties, "L2_cache_size", 0):
        facts["l2_bytes"] = float(l2_bytes)
    if clock := getattr(properties, "clock_rate", 0):
        facts["clock_mhz"] = clock / 1e3
    memory_clock, bus_bits = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    if memory_clock and bus_bits:
        facts["peak_bandwidth_gb_s"] = 2 * memory_clock * 1e3 * bus_bits / 8 / 1e9
    return cuda_target(properties.name, facts, device.index)


def cuda_target(name: str, facts: Mapping[str, float], index: int | None = None) -> Target:
    """Returns the target of a GPU from its driver's name and facts: its data file's, else what follows from its clocks
    and family. A GPU without a file has no figures of its own, so that the library stays where only a measurement
    tells whether a kernel is faster."""
    spec = find_spec(name)
    capability = int(facts.get("capability", spec.capability if spec else _OLDEST))
    if spec is None and "clock_mhz" in facts and "units" in facts:
        found = _by_family(name, capability, facts)
    else:
        found = _by_row(name, spec or _stand_in(capability), facts)
        if spec is None:
            found = replace(found, assumed=True, source=f"{name or 'cuda'} is unknown: taken for {found.source}")
    family = nearest_family(capability)
    made = replace(
        found,
        index=index,
        capability=capability,
        cache_bytes=int(facts.get("l2_bytes", found.cache_bytes)),
        shared_bytes=family.shared_kib << 10,
        registers=family.registers,
        threads=family.threads,
        abilities=family.abilities,
        file=spec.file if spec else "",
        allocator="cuda",
        guard=f"torch.cuda.device({index or 0})",
        aligned=True,
        asynchronous=True,
    )
    speeds = {} if spec is None else device_file(spec.file).get("measured", {})
    return calibrated(made, dict(speeds_in(Path(name), speeds)))


def _launch_us(file: str = "") -> float:
    return figures_of(Target("cuda", file=file, abilities=frozenset({"blocks"})), LaunchFigures).launch_us


def _by_row(name: str, spec: DeviceSpec, facts: Mapping[str, float]) -> Target:
    # A slice of a GPU (MIG), or a die with fewer SMs than the table's: its share of everything.
    share = min(1.0, facts.get("units", spec.sms) / spec.sms)
    if share > 0.9:
        share = 1.0
    return Target(
        "cuda",
        name=name or spec.name,
        source=spec.source,
        units=int(facts.get("units", spec.sms)),
        bandwidth=spec.bandwidth_gb_s * 1e3 * share,
        launch_us=_launch_us(spec.file),
        vector={kind: rate * 1e6 * share for kind, rate in spec.vector.items()},
        matrix={kind: rate * 1e6 * share for kind, rate in spec.matrix.items()},
        cache_bytes=int(spec.l2_mib * 2**20),
    )


def _stand_in(capability: int) -> DeviceSpec:
    """The slowest device with a file of this capability, of the next lower one if there is none."""
    specs = all_specs()
    nearest = max((spec.capability for spec in specs if spec.capability <= capability), default=_OLDEST)
    return min((spec for spec in specs if spec.capability == nearest), key=lambda spec: spec.bandwidth_gb_s)


def _by_family(name: str, capability: int, facts: Mapping[str, float]) -> Target:
    """A GPU without a data file, from what its driver says: multiply-adds per SM and clock, two FLOPs each."""
    family, stand_in = nearest_family(capability), _stand_in(capability)
    clocks = 2 * int(facts["units"]) * facts["clock_mhz"]  # FLOPs per microsecond and lane
    vector = {"fp32": family.fp32 * clocks, "fp64": family.fp64 * clocks, "fp16": family.fp32 * clocks}
    vector["bf16"] = vector["fp32"]
    matrix: dict[str, float] = {}
    if family.half:
        matrix["fp16"] = family.half * clocks
        if family.ampere:
            matrix |= {"bf16": matrix["fp16"], "tf32": matrix["fp16"] / 2}
    return Target(
        "cuda",
        name=name or f"sm_{capability}",
        source=f"{name or 'cuda'} has no data file: from its clocks and compute capability {capability / 10}",
        units=int(facts["units"]),
        bandwidth=facts.get("peak_bandwidth_gb_s", stand_in.bandwidth_gb_s) * 1e3,
        launch_us=_launch_us(),
        vector=vector,
        matrix=matrix,
        cache_bytes=int(stand_in.l2_mib * 2**20),
    )
