"""Speeds: what the cost model takes a device to be capable of. In: a torch device or a `DeviceInfo`. Out: `Speeds`.

`device_info` looks at the real device and at torch's settings once a compile and puts what it finds into
`DeviceInfo.facts`; everything after that is a pure function of the DeviceInfo, which hooks are handed. Facts:

| fact | is |
|---|---|
| `capability` | compute capability times ten |
| `units` | streaming multiprocessors, or CPU threads that torch uses |
| `clock_mhz`, `peak_bandwidth_gb_s`, `l2_bytes` | as the driver says, where it does |
| `tf32.matmul`, `tf32.convolution` | 1 if torch may use TF32 for float32 |
| `assumed` | 1 if there is no such device here, and `name` is a stand-in |
| `measured.NAME` | figure NAME of the calibration file |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch

from litz_plugins import DeviceInfo, OptionsView

from .calibration import load_calibration
from .devices import CPU, DEFAULT_GPU, DEVICES, LAUNCH_US, DeviceSpec, find_spec, nearest_family

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


def rate_kind(dtype: torch.dtype) -> str:
    """The name of a dtype in the tables of rates; other integers and bool count as "int"."""
    if str(dtype).startswith("torch.float8"):
        return "fp8"
    return _KINDS.get(dtype, "int")


@dataclass(frozen=True)
class Speeds:
    """A device's speeds. `bandwidth` is in bytes, `vector` and `matrix` are in FLOPs, all per microsecond.

    `units` are streaming multiprocessors or CPU threads. `cache_bytes` is the last cache's size. `launch_us` is what a
    kernel adds to a stream however little it does. `measured` names the figures that come from a calibration file: they
    are speeds that were reached, the others are peaks. `source` says where the figures are from.
    """

    name: str
    type: str
    units: int
    cache_bytes: int
    bandwidth: float
    launch_us: float
    vector: Mapping[str, float]
    matrix: Mapping[str, float]
    source: str
    measured: frozenset[str] = frozenset()
    tf32: frozenset[str] = field(default_factory=frozenset)
    assumed: bool = False

    def vector_rate(self, dtype: torch.dtype) -> tuple[float, str]:
        """FLOPs per microsecond of the ordinary units, and the name of the figure."""
        kind = rate_kind(dtype)
        if kind in self.vector:
            return self.vector[kind], f"vector_tflops.{kind}"
        # Integers run at half the fp32 rate (64 of 128 lanes of an SM from Ampere on); 64-bit ones at less, but then
        # they are few beside the bytes they move.
        rate = self.vector["fp32"]
        return (rate / 2 if kind in ("int", "int8") else rate), "vector_tflops.fp32"

    def matrix_rate(self, dtype: torch.dtype, use: str = "matmul") -> tuple[float, str]:
        """FLOPs per microsecond of a contraction in `dtype`, and the name of the figure.

        use: "matmul" or "convolution", for which torch allows TF32 separately. A type that the matrix units lack runs
        on the ordinary ones.
        """
        kind = rate_kind(dtype)
        if kind == "fp32" and use in self.tf32 and "tf32" in self.matrix:
            kind = "tf32"
        if kind in self.matrix:
            return self.matrix[kind], f"matrix_tflops.{kind}"
        return self.vector_rate(dtype)


def device_info(device: torch.device | str, options: OptionsView | None = None) -> DeviceInfo:
    """The device as hooks see it: name and facts from the driver, torch's settings and the calibration file.

    options: for `calibration`, the path of a file. A CUDA device where there is none is taken for an H100, with the
    fact `assumed`. Quick when asked again. Errors: CalibrationError.
    """
    device = torch.device(device)
    path = options.get("calibration") if options is not None else None
    matmul, convolution = _tf32_settings() if device.type == "cuda" else (False, False)
    return _device_info(device, path, _changed(path), matmul, convolution)


def _changed(path: Path | None) -> int:
    """When the file was last written, so that a new one is read; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns if path is not None else 0
    except OSError:
        return 0


def _tf32_settings() -> tuple[bool, bool]:
    """May torch use TF32 for float32 in (matmuls, convolutions)?"""
    try:
        return torch.get_float32_matmul_precision() != "highest", bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch's old and new settings contradict each other, and it says so
        return False, False


@lru_cache(maxsize=64)
def _device_info(device: torch.device, path: Path | None, changed: int, matmul: bool, convolution: bool) -> DeviceInfo:
    name, facts = "", dict[str, float]()
    if device.type == "cuda":
        name, facts = _cuda_facts(device)
        facts |= {"tf32.matmul": float(matmul), "tf32.convolution": float(convolution)}
    elif device.type == "cpu":
        facts = {"units": float(torch.get_num_threads())}
    if path is not None:
        measured = load_calibration(path).figures(device.type, name)
        facts |= {f"measured.{key}": value for key, value in measured.items()}
    return DeviceInfo(device.type, device.index, name, tuple(sorted(facts.items())))


def _cuda_facts(device: torch.device) -> tuple[str, dict[str, float]]:
    if not torch.cuda.is_available():
        return DEFAULT_GPU, {"assumed": 1.0, "capability": 90.0}
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
    return properties.name, facts


@lru_cache(maxsize=64)
def speeds_of(info: DeviceInfo) -> Speeds:
    """The speeds of a device: the table's row for its name, else its family's, with measured figures over both."""
    facts = dict(info.facts)
    found = _cpu(facts) if info.type == "cpu" else _gpu(info, facts)
    figures = {name.removeprefix("measured."): value for name, value in facts.items() if name.startswith("measured.")}
    if not figures:
        return found
    vector, matrix = dict(found.vector), dict(found.matrix)
    for name, value in figures.items():
        table, _, kind = name.partition(".")
        if table == "vector_tflops":
            vector[kind] = value * 1e6
        elif table == "matrix_tflops":
            matrix[kind] = value * 1e6
    return replace(
        found,
        bandwidth=figures.get("bandwidth_gb_s", found.bandwidth / 1e3) * 1e3,
        launch_us=figures.get("launch_us", found.launch_us),
        vector=vector,
        matrix=matrix,
        source=f"the calibration file; else {found.source}",
        measured=frozenset(figures),
    )


def _cpu(facts: Mapping[str, float]) -> Speeds:
    threads = max(1, int(facts.get("units") or torch.get_num_threads()))
    fp32, fp64 = CPU.fp32_gflops * threads * 1e3, CPU.fp64_gflops * threads * 1e3
    # Half types are converted to fp32 and back around every operation, unless the processor has units for them.
    rates = {"fp32": fp32, "fp64": fp64, "fp16": fp32 / 2, "bf16": fp32 / 2}
    bandwidth = min(CPU.bandwidth_gb_s * threads, CPU.most_bandwidth_gb_s) * 1e3
    cache = int(CPU.cache_mib * 2**20)
    launch_us = CPU.launch_us if threads > 1 else 0.5
    return Speeds("cpu", "cpu", threads, cache, bandwidth, launch_us, rates, dict(rates), CPU.source)


def _gpu(info: DeviceInfo, facts: Mapping[str, float]) -> Speeds:
    if not info.name and not facts:
        info, facts = DeviceInfo(info.type, info.index, DEFAULT_GPU), {"assumed": 1.0}
    spec = find_spec(info.name)
    if spec is None and "clock_mhz" in facts and "units" in facts:
        return _by_family(info, facts)
    unknown = spec is None
    spec = spec or _stand_in(int(facts.get("capability", 0)))
    # A slice of a GPU (MIG), or a die with fewer SMs than the table's: its share of everything.
    share = min(1.0, facts.get("units", spec.sms) / spec.sms)
    if share > 0.9:
        share = 1.0
    source = spec.source if not unknown else f"{info.name or info.type} is unknown: taken for {spec.name}"
    if facts.get("assumed"):
        source = f"no GPU here: taken for {spec.name}"
    return Speeds(
        info.name or spec.name,
        info.type,
        int(facts.get("units", spec.sms)),
        int(facts.get("l2_bytes", spec.l2_mib * 2**20)),
        spec.bandwidth_gb_s * 1e3 * share,
        LAUNCH_US,
        {kind: rate * 1e6 * share for kind, rate in spec.vector.items()},
        {kind: rate * 1e6 * share for kind, rate in spec.matrix.items()},
        source,
        tf32=_tf32(facts),
        assumed=bool(facts.get("assumed")) or unknown,
    )


def _tf32(facts: Mapping[str, float]) -> frozenset[str]:
    return frozenset(use for use in ("matmul", "convolution") if facts.get(f"tf32.{use}"))


def _stand_in(capability: int) -> DeviceSpec:
    """The slowest device of the table of this capability, of the next lower one if there is none."""
    below = [row.capability for row in DEVICES if row.capability <= capability]
    nearest = max(below, default=75)
    return min((row for row in DEVICES if row.capability == nearest), key=lambda row: row.bandwidth_gb_s)


def _by_family(info: DeviceInfo, facts: Mapping[str, float]) -> Speeds:
    """A GPU that is not in the table, from what its driver says: multiply-adds per SM and clock, two FLOPs each."""
    capability = int(facts.get("capability", 75))
    family = nearest_family(capability)
    sms = int(facts["units"])
    clocks = 2 * sms * facts["clock_mhz"]  # FLOPs per microsecond and lane
    vector = {"fp32": family.fp32 * clocks, "fp64": family.fp64 * clocks, "fp16": family.fp32 * clocks}
    vector["bf16"] = vector["fp32"]
    matrix: dict[str, float] = {}
    if family.half:
        matrix["fp16"] = family.half * clocks
        if family.ampere:
            matrix |= {"bf16": matrix["fp16"], "tf32": matrix["fp16"] / 2}
    stand_in = _stand_in(capability)
    bandwidth = facts.get("peak_bandwidth_gb_s", stand_in.bandwidth_gb_s) * 1e3
    cache = int(facts.get("l2_bytes", stand_in.l2_mib * 2**20))
    source = f"{info.name or info.type} is not in the table: from its clocks and compute capability {capability / 10}"
    return Speeds(
        info.name or f"sm_{capability}",
        info.type,
        sms,
        cache,
        bandwidth,
        LAUNCH_US,
        vector,
        matrix,
        source,
        tf32=_tf32(facts),
    )
