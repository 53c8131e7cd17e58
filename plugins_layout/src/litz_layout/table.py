"""The table: which layout a library's convolutions work in, by device, type and kind of convolution.

In: where and what. Out: a row. A convolution in the layout that is not native has its operands and its result
transposed inside the library, each read and written once; `factor` is what channels last costs of channels first
beside that (1: nothing; above 1: its kernels are slower). `factor` is the worst that a source reports, since a plan
must not lose. Rows are asked from the top: the first that fits counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Native = Literal["channels last", "channels first", "either"]
Shape = Literal["dense", "narrowing", "grouped", "depthwise"]
"""narrowing: a kernel of more than one pixel and half as many output channels as input channels, or fewer."""


@dataclass(frozen=True)
class Row:
    """device: "cuda" or "cpu". capability: least compute capability times ten. types: of the operands, as
    `litz.cost.speeds` names them ("tf32": float32 where torch allows TF32). shapes: of convolutions."""

    device: str
    capability: int
    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    native: Native
    factor: float
    source: str


_TENSOR_CORES = (
    "tensor core kernels are for NHWC, others are transposed for them (MosaicML Composer, 'Channels Last', after "
    "NVIDIA); an H100 spends 3 of the 29 ms of a ResNet-50 step in NCHW on it (docs/benchmarks.md); Inductor's "
    "figures: channels last takes 0.82 of the time (torch/_inductor/graph.py)"
)
_NARROWING = "Inductor's figures: gains in inference, loses in training's backward (torch/_inductor/graph.py)"
_GROUPED = "Inductor's figures: 1.36 times the time, and 31 times for one of two groups (torch/_inductor/graph.py)"
_DEPTHWISE = "Inductor's figures: 1.86 times as fast for one case (torch/_inductor/graph.py); counted as no gain"
_ONEDNN = "Intel extension for PyTorch, 'Channels Last': close to oneDNN's blocked format, to which NCHW is reordered"
_ORDINARY = "no figures: channels first kept"

_HALF, _ALL = ("fp16", "bf16", "tf32"), ("fp16", "bf16", "tf32", "fp32")

ROWS: tuple[Row, ...] = (
    Row("cuda", 70, ("fp16",), ("dense",), "channels last", 1.0, _TENSOR_CORES),
    Row("cuda", 80, _HALF, ("dense",), "channels last", 1.0, _TENSOR_CORES),
    Row("cuda", 70, _HALF, ("narrowing",), "either", 1.0, _NARROWING),
    Row("cuda", 70, _HALF, ("depthwise",), "either", 1.0, _DEPTHWISE),
    Row("cuda", 70, _ALL, ("grouped",), "channels first", 31.0, _GROUPED),
    Row("cuda", 0, (*_ALL, "fp64"), ("dense", "narrowing", "depthwise"), "channels first", 2.0, _ORDINARY),
    Row("cpu", 0, ("fp32", "bf16", "fp16"), ("dense", "narrowing"), "channels last", 1.0, _ONEDNN),
    Row("cpu", 0, ("fp32", "bf16", "fp16"), ("grouped", "depthwise"), "either", 1.0, _ONEDNN),
)

UNKNOWN = Row("", 0, (), (), "channels first", 2.0, "nothing is known of this device and type")


def find_row(device: str, capability: int, kind: str, shape: Shape) -> Row:
    """The first row that fits, else one that keeps channels first."""
    for row in ROWS:
        if row.device == device and row.capability <= capability and kind in row.types and shape in row.shapes:
            return row
    return UNKNOWN
