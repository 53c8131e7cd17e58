"""The machine as data: GPUs, their links, the network. In: a name, a JSON object, or the driver. Out: a `Topology`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any

from litz_plugins import LitzError

from .tables import NVLINK_GB_S, Generation


class TopologyError(LitzError):
    """A topology or profile that makes no sense: what is wrong, and what would be right."""


@dataclass(frozen=True)
class Topology:
    """Equal nodes of equal GPUs.

    gpu: its short name ("H200"). generation: "volta", "ampere", "hopper" or "blackwell". link: "NV18" (so many NVLinks
    between any two GPUs of a node) or "PCI". A node is what these links reach: a host, or the hosts of one NVLink
    switch. link_gb_s: GB/s per GPU and direction over it. network_gb_s: GB/s per GPU and direction between nodes. nvls:
    whether NCCL may reduce in the NVLink switches. rails: a node's network cards, which its GPUs share; 0 for one each.
    """

    gpu: str
    generation: str
    gpus_per_node: int
    link: str
    link_gb_s: float
    network_gb_s: float
    nvls: bool = False
    rails: int = 0

    def __post_init__(self) -> None:
        if self.generation.upper() not in Generation.__members__:
            known = ", ".join(name.lower() for name in Generation.__members__)
            raise TopologyError(f"there is no GPU generation {self.generation!r}; litz knows {known}")
        if self.gpus_per_node < 1 or self.link_gb_s <= 0 or self.network_gb_s <= 0 or self.rails < 0:
            raise TopologyError("a topology needs gpus_per_node >= 1, link_gb_s > 0, network_gb_s > 0 and rails >= 0")
        if self.link != "PCI" and not re.fullmatch(r"NV\d+", self.link):
            raise TopologyError(f"a link is PCI or NV and the number of NVLinks, as in NV18; got {self.link!r}")

    def leaving_gb_s(self, gpus: int) -> float:
        """Returns the GB/s, of one direction, over which so many GPUs of a node reach other nodes: over a rail each, or
        over all rails where they are more."""
        rails = self.rails or self.gpus_per_node
        return self.network_gb_s * self.gpus_per_node / rails * min(gpus, rails)

    @property
    def row(self) -> Generation:
        """Returns the generation as an index of NCCL's tables."""
        return Generation[self.generation.upper()]

    def as_json(self) -> dict[str, Any]:
        """Returns the fields by name, as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class _Gpu:
    """The usual node of a GPU. network_gb_s: GB/s per GPU: 12.5, 25 and 50 are 100, 200 and 400 Gb/s."""

    generation: str
    link: str
    network_gb_s: float
    gpus_per_node: int = 8


def _nodes() -> Any:
    return json.loads((resources.files(__package__) / "profiles" / "nodes.json").read_text(encoding="utf-8"))


_NODES = _nodes()
GPUS: Mapping[str, _Gpu] = {name: _Gpu(**fields) for name, fields in _NODES["gpus"].items()}
"""The links of the vendor's usual node of each GPU."""
_PCI_GB_S: Mapping[str, float] = _NODES["pci_gb_s"]
"""GB/s over PCI Express, by generation of the GPU."""


def known_gpu(name: str) -> str | None:
    """Returns the key in `GPUS` of a driver's name ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"); None if unknown."""
    words = re.split(r"[^A-Za-z0-9]+", name.upper())
    return next((gpu for gpu in sorted(GPUS, key=len, reverse=True) if gpu in words), None)


def make_topology(gpu: str, link: str | None = None, *, gpus_per_node: int | None = None, **changes: Any) -> Topology:
    """Returns the usual node of a GPU, with what is given put in place of the usual.

    changes: network_gb_s, link_gb_s, nvls, rails. Errors: TopologyError for an unknown GPU or a malformed link.
    """
    name = known_gpu(gpu)
    if name is None:
        raise TopologyError(
            f"litz knows no links of a {gpu!r}; it knows {', '.join(GPUS)}. For another, give a profile (--profile)"
        )
    usual = GPUS[name]
    link = (link or usual.link).upper()
    link_gb_s = _PCI_GB_S[usual.generation]
    if re.fullmatch(r"NV\d+", link):
        link_gb_s = int(link[2:]) * NVLINK_GB_S[Generation[usual.generation.upper()]]
    settings = {"link_gb_s": link_gb_s, "network_gb_s": usual.network_gb_s, **changes}
    return Topology(name, usual.generation, gpus_per_node or usual.gpus_per_node, link, **settings)


def read_topology(data: Mapping[str, Any], where: str) -> Topology:
    """Returns the topology in a JSON object. where: the file, for messages. Raises TopologyError."""
    known = {field.name for field in fields(Topology)}
    wrong = sorted(set(data) - known)
    missing = sorted(known - {"nvls", "rails"} - set(data))
    if wrong or missing:
        problem = f"unknown: {', '.join(wrong)}" if wrong else f"missing: {', '.join(missing)}"
        raise TopologyError(f"{where}: the topology has the keys {', '.join(sorted(known))}; {problem}")
    for field in fields(Topology):
        value = data.get(field.name, field.default)
        kind: Any = {"str": str, "int": int, "float": (int, float), "bool": bool}[str(field.type)]
        if not isinstance(value, kind) or (isinstance(value, bool) and field.type != "bool"):
            raise TopologyError(f"{where}: {field.name} of the topology should be {field.type}; got {value!r}")
    return Topology(**data)


def machine_topology() -> Topology | None:
    """Returns the machine's topology as NVML describes its first GPU; None without NVML (package nvidia-ml-py), GPU or
    known GPU. NVLink counts are the active links of the GPU: right where all links go to switches or, with two GPUs, to
    the other."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)
        gpu = known_gpu(name.decode() if isinstance(name, bytes) else str(name))
        if gpu is None:
            return None
        links = 0
        for link in range(int(pynvml.NVML_NVLINK_MAX_LINKS)):
            try:
                links += int(pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED)
            except pynvml.NVMLError:
                break
        return make_topology(gpu, f"NV{links}" if links else "PCI", gpus_per_node=count)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
