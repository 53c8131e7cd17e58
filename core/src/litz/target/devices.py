"""GPUs by the name that their driver gives them: what a device can do at best, and what its capability says.

In: a device's name, or a compute capability. Out: a `DeviceSpec` of peak rates, dense (no structured sparsity), as the
vendor states them; a `Family`. Both are from data files (`figures/`). The words of a file's name are those that the
driver's name has: `h100-pcie.toml` is for "NVIDIA H100 PCIe".

`source` names the document of each. Two figures are not in the datasheets: the number of SMs and the L2 size are from
the architecture whitepapers of the same GPU, and fp64 of the GeForce-like dies is a 64th (Turing: a 32nd) of fp32 as
those whitepapers say. GeForce matrix rates are those with fp32 accumulation, which is what PyTorch asks for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .data import device_file, device_names, read


@dataclass(frozen=True)
class DeviceSpec:
    """The datasheet of a device.

    `capability` is the compute capability times ten (90 for 9.0). `vector` and `matrix` are TFLOP/s by type (TOP/s for
    integers; a multiply-add counts as two): fp64, fp32, fp16, bf16 of the ordinary units; fp64, tf32, fp16, bf16, int8,
    fp8 of the tensor cores, where they have it: what they lack, the ordinary units do. `file`: its name, as
    `device_file` takes it, and `Target.file`.
    """

    file: str
    name: str
    capability: int
    sms: int
    vector: Mapping[str, float] = field(hash=False)
    matrix: Mapping[str, float] = field(hash=False)
    bandwidth_gb_s: float
    l2_mib: float
    source: str


@dataclass(frozen=True)
class Family:
    """The figures that GPUs of one compute capability have in common.

    Multiply-adds per SM and clock, for GPUs without a file: of ordinary fp32 and fp64 units, and of tensor cores in
    fp16 with fp32 accumulation (0 without tensor cores); whether they take bf16 and TF32. shared_kib: KiB of shared
    memory that one block may have, nearly what all blocks of an SM share. threads, and 32-bit registers, that an SM
    holds. abilities: as `Target` lists them.
    """

    fp32: int
    fp64: int
    half: int
    ampere: bool
    shared_kib: int
    threads: int
    registers: int
    abilities: frozenset[str]


@lru_cache(maxsize=64)
def spec_of(file: str) -> DeviceSpec:
    """Returns the datasheet in a device's file."""
    tables = device_file(file)
    sheet = tables["datasheet"]
    rates = sheet["vector_tflops"], sheet["matrix_tflops"]
    known = sheet["capability"], sheet["units"], *rates, sheet["bandwidth_gb_s"], sheet["cache_mib"], sheet["source"]
    return DeviceSpec(file, tables["name"], *known)


def all_specs() -> tuple[DeviceSpec, ...]:
    """Returns the datasheets of all GPUs that have a file, the oldest first."""
    specs = (spec_of(file) for file in device_names() if "datasheet" in device_file(file))
    return tuple(sorted(specs, key=lambda spec: (spec.capability, spec.file)))


def find_spec(name: str) -> DeviceSpec | None:
    """Returns the datasheet for a driver's name, such as "NVIDIA A100-SXM4-80GB"; None if there is none."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fitting = [file for file in device_names() if words.issuperset(file.split("-"))]
    return spec_of(max(fitting, key=lambda file: file.count("-"))) if fitting else None


def default_gpu() -> str:
    """Returns what a CUDA device is taken for where there is none (fake tensors on a machine without a GPU): the name
    that a driver gives."""
    return str(read("gpu/capabilities")["default_gpu"])


@lru_cache(maxsize=1)
def families() -> Mapping[int, Family]:
    """Returns what each known compute capability says, by the capability times ten."""
    rows = read("gpu/capabilities")["capability"]
    return {int(capability): _family(row) for capability, row in rows.items()}


def _family(row: Mapping[str, Any]) -> Family:
    return Family(
        fp32=row["fp32_per_clock"],
        fp64=row["fp64_per_clock"],
        half=row["matrix_per_clock"],
        ampere="bf16" in row["matrix_types"],
        shared_kib=row["shared_kib"],
        threads=row["threads"],
        registers=row["registers"],
        abilities=frozenset(row["abilities"]),
    )


def nearest_family(capability: int) -> Family:
    """Returns the family of the greatest known capability that is not above the given one; the oldest if there is
    none."""
    known = [key for key in families() if key <= capability]
    return families()[max(known, default=min(families()))]
