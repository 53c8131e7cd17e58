"""The device table: what a device can do at best, by the name that its driver gives it.

In: a device's name. Out: a row of peak rates, dense (no structured sparsity), as its vendor states them. Rates are in
TFLOP/s (TOP/s for integers; a multiply-add counts as two), bandwidth in GB/s (1e9 bytes), cache in MiB.

`source` names the document of each row. Two figures are not in the datasheets: the number of SMs and the L2 size are
from the architecture whitepapers of the same GPU, and fp64 of the GeForce-like dies is a 64th (Turing: a 32nd) of fp32
as those whitepapers say. GeForce matrix rates are those with fp32 accumulation, which is what PyTorch asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LINE = 128
"""Bytes of a line of a GPU's caches."""
SECTOR = 32
"""Bytes that a GPU's memory system moves at least."""
LAUNCH_US = 2.5
"""Time that a kernel adds to a stream however little it does, in µs. On an H100 `litz_tools.calibrate` measured 1.0 for
kernels replayed from a CUDA graph, and a loop of eager calls on an H200 took 5.1 a call, nearly all of it the host's;
a generated launcher lies between. Other rows assume the same until they are calibrated."""

DEFAULT_GPU = "NVIDIA H100 80GB HBM3"
"""What a CUDA device is taken for where there is none (fake tensors on a machine without a GPU)."""


@dataclass(frozen=True)
class DeviceSpec:
    """One row of the table of devices.

    `capability` is the compute capability times ten (90 for 9.0). `vector` and `matrix` are TFLOP/s by type: fp64,
    fp32, fp16, bf16 of the ordinary units; fp64, tf32, fp16, bf16, int8, fp8 of the tensor cores, where they have it.
    """

    name: str
    words: frozenset[str]
    capability: int
    sms: int
    vector: Mapping[str, float]
    matrix: Mapping[str, float]
    bandwidth_gb_s: float
    l2_mib: float
    source: str


def _row(
    name: str,
    words: str,
    capability: int,
    sms: int,
    bandwidth_gb_s: float,
    l2_mib: float,
    vector: tuple[float, float, float],
    matrix: Mapping[str, float],
    source: str,
) -> DeviceSpec:
    """A row from its figures. vector: fp64, fp32 and fp16 (which is taken for bf16 as well from Ampere on)."""
    fp64, fp32, half = vector
    rates = {"fp64": fp64, "fp32": fp32, "fp16": half, "bf16": half if capability >= 80 else fp32}
    # A tensor core rate that the hardware lacks (bf16 on Volta) is left out: the ordinary units then do the work.
    return DeviceSpec(
        name, frozenset(words.lower().split()), capability, sms, rates, dict(matrix), bandwidth_gb_s, l2_mib, source
    )


def _matrix(
    half: float, *, fp64: float = 0, tf32: float = 0, int8: float = 0, fp8: float = 0, bf16: bool = True
) -> dict[str, float]:
    rates = {"fp16": half, "bf16": half if bf16 else 0, "fp64": fp64, "tf32": tf32, "int8": int8, "fp8": fp8}
    return {kind: rate for kind, rate in rates.items() if rate}


_H100_SXM = _matrix(989.4, fp64=66.9, tf32=494.7, int8=1978.9, fp8=1978.9)

DEVICES: tuple[DeviceSpec, ...] = (
    # Pascal, Volta, Turing: no bf16, no TF32.
    _row("P100", "p100", 60, 56, 732, 4, (5.3, 10.6, 21.2), {}, "NVIDIA Tesla P100 datasheet (SXM2)"),
    _row("V100 SXM2", "v100", 70, 80, 900, 6, (7.8, 15.7, 31.4), _matrix(125, bf16=False),
         "NVIDIA V100 datasheet, 2020"),
    _row("V100 PCIe", "v100 pcie", 70, 80, 900, 6, (7.0, 14.0, 28.0), _matrix(112, bf16=False),
         "NVIDIA V100 datasheet, 2020"),
    _row("T4", "t4", 75, 40, 300, 4, (0.25, 8.1, 16.2), _matrix(65, int8=130, bf16=False), "NVIDIA T4 datasheet, 2019"),
    _row("RTX 2080 Ti", "2080 ti", 75, 68, 616, 5.5, (0.42, 13.4, 26.9), _matrix(53.8, int8=215.2, bf16=False),
         "NVIDIA Turing architecture whitepaper, table 1"),
    # Ampere.
    _row("A100 40GB", "a100", 80, 108, 1555, 40, (9.7, 19.5, 78), _matrix(312, fp64=19.5, tf32=156, int8=624),
         "NVIDIA A100 datasheet, 2021"),
    _row("A100 80GB PCIe", "a100 80gb", 80, 108, 1935, 40, (9.7, 19.5, 78), _matrix(312, fp64=19.5, tf32=156, int8=624),
         "NVIDIA A100 datasheet, 2021"),
    _row("A100 80GB SXM", "a100 80gb sxm4", 80, 108, 2039, 40, (9.7, 19.5, 78),
         _matrix(312, fp64=19.5, tf32=156, int8=624), "NVIDIA A100 datasheet, 2021"),
    _row("A30", "a30", 80, 56, 933, 24, (5.2, 10.3, 41.2), _matrix(165, fp64=10.3, tf32=82, int8=330),
         "NVIDIA A30 datasheet, 2022"),
    _row("A10", "a10", 86, 72, 600, 6, (0.49, 31.2, 31.2), _matrix(125, tf32=62.5, int8=250),
         "NVIDIA A10 datasheet, 2021"),
    _row("A10G", "a10g", 86, 80, 600, 6, (0.55, 35.0, 35.0), _matrix(70, tf32=35, int8=140),
         "NVIDIA A10G datasheet, 2021"),
    _row("A40", "a40", 86, 84, 696, 6, (0.58, 37.4, 37.4), _matrix(149.7, tf32=74.8, int8=299.3),
         "NVIDIA A40 datasheet, 2022"),
    _row("RTX A6000", "a6000", 86, 84, 768, 6, (0.6, 38.7, 38.7), _matrix(154.8, tf32=77.4, int8=309.7),
         "NVIDIA Ampere GA102 architecture whitepaper"),
    _row("RTX 3080", "3080", 86, 68, 760, 5, (0.46, 29.8, 29.8), _matrix(59.5, tf32=29.8, int8=238),
         "NVIDIA Ampere GA102 architecture whitepaper, table 2"),
    _row("RTX 3090", "3090", 86, 82, 936, 6, (0.56, 35.6, 35.6), _matrix(71, tf32=35.6, int8=284),
         "NVIDIA Ampere GA102 architecture whitepaper, table 2"),
    # Ada.
    _row("L4", "l4", 89, 58, 300, 48, (0.47, 30.3, 30.3), _matrix(121, tf32=60, int8=242, fp8=242),
         "NVIDIA L4 datasheet, 2023"),
    _row("L40", "l40", 89, 142, 864, 96, (1.41, 90.5, 90.5), _matrix(181, tf32=90.5, int8=362, fp8=362),
         "NVIDIA L40 datasheet, 2023"),
    _row("L40S", "l40s", 89, 142, 864, 96, (1.43, 91.6, 91.6), _matrix(362, tf32=183, int8=733, fp8=733),
         "NVIDIA L40S datasheet, 2023"),
    _row("RTX 4080", "4080", 89, 76, 717, 64, (0.76, 48.7, 48.7), _matrix(97.5, tf32=48.7, int8=390, fp8=195),
         "NVIDIA Ada architecture whitepaper, appendix A"),
    _row("RTX 4090", "4090", 89, 128, 1008, 72, (1.29, 82.6, 82.6), _matrix(165.2, tf32=82.6, int8=660.6, fp8=330.3),
         "NVIDIA Ada architecture whitepaper, appendix A"),
    _row("RTX 6000 Ada",
         "6000 ada", 89, 142, 960, 96, (1.42, 91.1, 91.1), _matrix(364.2, tf32=182.1, int8=728.5, fp8=728.5),
         "NVIDIA RTX 6000 Ada Generation datasheet, 2022"),
    # Hopper.
    _row("H100 SXM", "h100", 90, 132, 3350, 50, (33.5, 66.9, 133.8), _H100_SXM,
         "NVIDIA H100 datasheet, 2023, and Hopper architecture whitepaper, table 2"),
    _row("H100 PCIe",
         "h100 pcie", 90, 114, 2000, 50, (25.6, 51.2, 102.4), _matrix(756, fp64=51.2, tf32=378, int8=1513, fp8=1513),
         "NVIDIA H100 datasheet, 2023"),
    _row("H100 NVL",
         "h100 nvl", 90, 132, 3900, 50, (30, 60, 120), _matrix(835.5, fp64=60, tf32=417.5, int8=1670.5, fp8=1670.5),
         "NVIDIA H100 datasheet, 2024"),
    _row("H200 SXM", "h200", 90, 132, 4800, 50, (33.5, 66.9, 133.8), _H100_SXM, "NVIDIA H200 datasheet, 2024"),
    _row("H200 NVL",
         "h200 nvl", 90, 132, 4800, 50, (30, 60, 120), _matrix(835.5, fp64=60, tf32=417.5, int8=1670.5, fp8=1670.5),
         "NVIDIA H200 datasheet, 2024"),
    _row("GH200", "gh200", 90, 132, 4000, 50, (33.5, 66.9, 133.8), _H100_SXM,
         "NVIDIA GH200 datasheet, 2024 (96 GB HBM3)"),
    # Blackwell.
    _row("B200", "b200", 100, 148, 8000, 126, (40, 80, 160), _matrix(2250, fp64=40, tf32=1100, int8=4500, fp8=4500),
         "NVIDIA Blackwell architecture technical brief, 2024 (HGX B200)"),
    _row("GB200", "gb200", 100, 148, 8000, 126, (45, 90, 180), _matrix(2500, fp64=45, tf32=1250, int8=5000, fp8=5000),
         "NVIDIA Blackwell architecture technical brief, 2024 (GB200, per GPU)"),
    _row("RTX 5090", "5090", 120, 170, 1792, 96, (1.64, 104.8, 104.8), _matrix(209.5, tf32=104.8, int8=838, fp8=419),
         "NVIDIA RTX Blackwell architecture whitepaper, 2025"),
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What GPUs of one compute capability have in common.

    Multiply-adds per SM and clock, for GPUs that are not in the table: of ordinary fp32 and fp64 units, and of tensor
    cores in fp16 with fp32 accumulation (0 without tensor cores); whether they take bf16 and TF32. shared_kib: KiB of
    shared memory that one block may have, nearly what all blocks of an SM share. threads: that an SM holds.
    """

    fp32: int
    fp64: int
    half: int
    ampere: bool
    shared_kib: int
    threads: int = 2048


FAMILIES: Mapping[int, Family] = {
    60: Family(64, 32, 0, False, 48),
    61: Family(128, 4, 0, False, 48),
    70: Family(64, 32, 512, False, 96),
    75: Family(64, 2, 256, False, 64, 1024),
    80: Family(64, 32, 1024, True, 163),
    86: Family(128, 2, 256, True, 99, 1536),
    87: Family(128, 2, 256, True, 163, 1536),
    89: Family(128, 2, 256, True, 99, 1536),
    90: Family(128, 64, 2048, True, 227),
    100: Family(128, 64, 4096, True, 227),
    120: Family(128, 2, 256, True, 99, 1536),
}
"""The figures of a family of GPUs, by capability. Source: CUDA C++ Programming Guide, "Arithmetic instructions" and
"Compute capabilities", and the architecture whitepapers; where GeForce and data-center dies of one capability differ
(8.6, 8.9, 12.0) the slower."""

REGISTERS = 65536
"""32-bit registers of an SM, of every capability in the table."""


def find_spec(name: str) -> DeviceSpec | None:
    """Returns the row of the table for a driver's name, such as "NVIDIA A100-SXM4-80GB"; None if there is none."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fitting = [row for row in DEVICES if row.words <= words]
    return max(fitting, key=lambda row: len(row.words), default=None)


def nearest_family(capability: int) -> Family:
    """Returns the family of the greatest known capability that is not above the given one; the oldest if there is
    none."""
    known = [key for key in FAMILIES if key <= capability]
    return FAMILIES[max(known, default=min(FAMILIES))]
