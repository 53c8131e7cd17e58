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
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from litz_plugins import SHARES, LitzError, OptionsView, Share, Target, unknown_target

from .calibration import Calibration, load_calibration
from .devices import DEFAULT_GPU, DEVICES, LAUNCH_US, REGISTERS, DeviceSpec, find_spec, nearest_family
from .processors import few_rows_here, has_blas

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

Describe = Callable[[torch.device, OptionsView | None], Target]

GPU_ABILITIES = frozenset(
    {
        "arena",
        "attention",
        "beside",
        "blocks",
        "finish",
        "float8",
        "fused_attention",
        "library_epilogue",
        "one_walk",
        "products",
        "recording",
        "separate_bias",
        "user_kernels",
    }
)


def rate_kind(dtype: torch.dtype) -> str:
    """Returns the name of a dtype in a target's tables of rates; other integers and bool count as "int"."""
    if str(dtype).startswith("torch.float8"):
        return "fp8"
    return _KINDS.get(dtype, "int")


class UnknownDeviceError(LitzError):
    """No row of the table of devices has this name."""


def target_named(name: str) -> Target:
    """Returns the target of a GPU by its driver's name or a part of it ("L4", "NVIDIA A100-SXM4-80GB"), as the
    datasheet has it, on no machine. Errors: UnknownDeviceError if no row of the table has the name."""
    spec = find_spec(name)
    if spec is None:
        known = ", ".join(row.name for row in DEVICES)
        raise UnknownDeviceError(f"{name!r} is not in the table of devices, which has {known}")
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
def _load_once(path: Path, changed: int) -> Calibration:
    return load_calibration(path)


def _changed(path: Path) -> int:
    """Returns when the file was last written, in ns, so that a new one is read; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def describe_cpu(device: torch.device, options: OptionsView | None = None) -> Target:
    """Returns the processor that this process runs on as a target, with as many threads as torch uses."""
    known = cpu_target(torch.get_num_threads())
    more = {"attention_blocks"} if has_blas() else set[str]()
    fewer_bits = _tf32_settings() & {"matmul"}  # cuDNN's setting for convolutions is not for processors
    return replace(known, few_rows=few_rows_here(), abilities=known.abilities | more, tf32=fewer_bits)


def describe_cuda(device: torch.device, options: OptionsView | None = None) -> Target:
    """Returns the target of a CUDA device, from its driver's facts and torch's settings. Where there is no GPU, the
    target is that of an H100, and is `assumed`."""
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


def calibrated(target: Target, figures: Mapping[str, float]) -> Target:
    """Returns a target with measured figures in place of its own. figures: by their names in a calibration file."""
    if not figures:
        return target
    rates = {"vector_tflops": dict(target.vector), "matrix_tflops": dict(target.matrix)}
    for name, value in figures.items():
        table, _, kind = name.partition(".")
        if table in rates:
            rates[table][kind] = value * 1e6
    return replace(
        target,
        bandwidth=figures.get("bandwidth_gb_s", target.bandwidth / 1e3) * 1e3,
        launch_us=figures.get("launch_us", target.launch_us),
        vector=rates["vector_tflops"],
        matrix=rates["matrix_tflops"],
        source=f"the calibration file; else {target.source}",
        measured=frozenset(figures),
        rough=target.rough and "bandwidth_gb_s" not in figures,
    )


@lru_cache(maxsize=16)
def cpu_target(threads: int) -> Target:
    """Returns the target of a processor that nobody measured, with AVX2 and DDR4. threads: how many it runs. What
    kernels reach of its best (`shares`): loops do one operation an instruction, and call functions for what has
    none."""
    fp32 = 80e3 * threads  # 8 lanes x 2 units x 2 FLOPs x 2.5 GHz
    # Half types are converted to fp32 and back around every operation, unless the processor has units for them.
    rates = {"fp32": fp32, "fp64": fp32 / 2, "fp16": fp32 / 2, "bf16": fp32 / 2}
    return Target(
        "cpu",
        source="generic CPU: AVX2 with two FMA units at 2.5 GHz, DDR4; measure with `python -m litz_tools.calibrate`",
        rough=True,
        units=threads,
        bandwidth=12e3 * threads,  # one core of a server alone draws as much; all of them together half of it each
        launch_us=2.0,  # a parallel region over a few dozen threads: EPCC microbenchmarks give 2 to 10 µs
        vector=rates,
        matrix=dict(rates),
        shares={**SHARES, "memory": Share(0.95, 0.5, 0.3), "loop": Share(1.0, 0.1, 0.04)},
        cache_bytes=32 << 20,
        row_bytes=256 << 10,  # half of an L2 cache
        most_buffers=64,
        abilities=frozenset({"float8", "library_windows"}),
        allocator="pool",
    )


@lru_cache(maxsize=16)
def _cuda_target_here(device: torch.device) -> Target:
    if not torch.cuda.is_available():
        stand_in = cuda_target(DEFAULT_GPU, {"capability": 90.0}, device.index)
        spec = find_spec(DEFAULT_GPU)
        assert spec is not None
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
    """Returns the target of a GPU from its driver's name and facts: the table's row, else what follows from its clocks
    and family."""
    spec = find_spec(name)
    capability = int(facts.get("capability", spec.capability if spec else 75))
    if spec is None and "clock_mhz" in facts and "units" in facts:
        found = _by_family(name, capability, facts)
    else:
        found = _by_row(name, spec or _stand_in(capability), facts)
        if spec is None:
            found = replace(found, assumed=True, source=f"{name or 'cuda'} is unknown: taken for {found.source}")
    family = nearest_family(capability)
    return replace(
        found,
        index=index,
        capability=capability,
        cache_bytes=int(facts.get("l2_bytes", found.cache_bytes)),
        shared_bytes=family.shared_kib << 10,
        registers=REGISTERS,
        threads=family.threads,
        abilities=GPU_ABILITIES,
        allocator="cuda",
        guard=f"torch.cuda.device({index or 0})",
        aligned=True,
        asynchronous=True,
    )


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
        launch_us=LAUNCH_US,
        vector={kind: rate * 1e6 * share for kind, rate in spec.vector.items()},
        matrix={kind: rate * 1e6 * share for kind, rate in spec.matrix.items()},
        cache_bytes=int(spec.l2_mib * 2**20),
    )


def _stand_in(capability: int) -> DeviceSpec:
    """The slowest device of the table of this capability, of the next lower one if there is none."""
    below = [row.capability for row in DEVICES if row.capability <= capability]
    nearest = max(below, default=75)
    return min((row for row in DEVICES if row.capability == nearest), key=lambda row: row.bandwidth_gb_s)


def _by_family(name: str, capability: int, facts: Mapping[str, float]) -> Target:
    """A GPU that is not in the table, from what its driver says: multiply-adds per SM and clock, two FLOPs each."""
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
        source=f"{name or 'cuda'} is not in the table: from its clocks and compute capability {capability / 10}",
        units=int(facts["units"]),
        bandwidth=facts.get("peak_bandwidth_gb_s", stand_in.bandwidth_gb_s) * 1e3,
        launch_us=LAUNCH_US,
        vector=vector,
        matrix=matrix,
        cache_bytes=int(stand_in.l2_mib * 2**20),
    )
