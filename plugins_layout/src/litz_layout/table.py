"""The table: which layout a library's convolutions work in, by device, type and kind of convolution.

In: where and what, a forward or a backward. Out: a row. A convolution in the layout that is not native has its operands
and its result transposed inside the library, each read and written once; `factor` is what channels last costs of
channels first beside that (1: nothing; above 1: its kernels are slower). `factor` is the worst that a source reports,
since a plan must not lose. `pace` is the time of a convolution channels first over the time that its FLOPs and bytes
need: a source's typical case; 1 where nobody measured. Rows are asked from the top: the first that fits counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Native = Literal["channels last", "channels first", "either"]
Shape = Literal[
    "dense",
    "pixelwise",
    "unaligned pixelwise",
    "few inputs",
    "wide few inputs",
    "narrowing",
    "grouped",
    "finely grouped",
    "unevenly grouped",
    "depthwise",
    "wide depthwise",
    "multiplied depthwise",
]
"""pixelwise: dense, with a kernel of one pixel. unaligned: a channel's pixels, 7 by 7 say, are no multiple of 16 bytes,
so that channels first is no matrix product that tensor cores take as it lies. few inputs: an image's 4 channels or
fewer, in one group. narrowing: a kernel of more than one pixel and half as many output channels as input channels, or
fewer. finely: fewer than 8 channels in a group. unevenly: the channels of a group are no power of two. wide: a kernel
of more than 5 pixels along each side. multiplied: each channel of the image gives several of the result."""

Pass = Literal["forward", "backward"]


@dataclass(frozen=True)
class Row:
    """device: "cuda" or "cpu". capability: least compute capability times ten; of a CPU, least number of threads.
    types: of the operands, as `litz.target.rate_kind` names them ("tf32": float32 where torch allows TF32). shapes: of
    convolutions. passes: both, or one of them."""

    device: str
    capability: int
    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    native: Native
    factor: float
    source: str
    passes: tuple[Pass, ...] = ("forward", "backward")
    pace: float = 1.0


_TENSOR_CORES = (
    "tensor core kernels are for NHWC, others are transposed for them (MosaicML Composer, 'Channels Last', after "
    "NVIDIA); Inductor's figures: channels last takes 0.82 of the time (torch/_inductor/graph.py)"
)
_NARROWING = "Inductor's figures: gains in inference, loses in training's backward (torch/_inductor/graph.py)"
_GROUPED = "Inductor's figures: 1.36 times the time, and 31 times for one of two groups (torch/_inductor/graph.py)"
_DEPTHWISE = "Inductor's figures: 1.86 times as fast for one case (torch/_inductor/graph.py); counted as no gain"
_HOPPER = "measured on an H100, torch 2.11 (docs/layout.md): channels last is {} times as fast"
_HOPPER_H200 = "measured on an H200, torch 2.11 (docs/layout.md): channels last is {} times as fast"
_ZEN = "measured on one thread of an AMD EPYC, torch 2.13 (docs/layout.md): channels last is {} times as fast"
_ZEN_THREADS = "measured on two and four threads of an AMD EPYC (docs/layout.md): channels last is {} times as fast"
_ONEDNN = "Intel extension for PyTorch, 'Channels Last': close to oneDNN's blocked format, to which NCHW is reordered"
_ORDINARY = "no figures: channels first kept"

_PIXELWISE: tuple[Shape, ...] = ("pixelwise", "unaligned pixelwise")
_FEW: tuple[Shape, ...] = ("few inputs", "wide few inputs")
_DENSE: tuple[Shape, ...] = ("dense", *_PIXELWISE, *_FEW)
_DEPTH: tuple[Shape, ...] = ("depthwise", "wide depthwise", "multiplied depthwise")
_NARROW_DEPTH: tuple[Shape, ...] = ("depthwise", "multiplied depthwise")
_GROUPED_ALIKE: tuple[Shape, ...] = ("grouped", "unevenly grouped")
_GROUPS: tuple[Shape, ...] = (*_GROUPED_ALIKE, "finely grouped")
_TENSOR, _FULL, _ALL = ("fp16", "bf16", "tf32"), ("tf32", "fp32"), ("fp16", "bf16", "tf32", "fp32")
_BOTH: tuple[Pass, ...] = ("forward", "backward")
_FORWARD: tuple[Pass, ...] = ("forward",)
_BACKWARD: tuple[Pass, ...] = ("backward",)

_Measured = (
    tuple[tuple[str, ...], tuple[Pass, ...], tuple[Shape, ...], Native, float, str]
    | tuple[tuple[str, ...], tuple[Pass, ...], tuple[Shape, ...], Native, float, str, float]
)
"""types, passes, shapes, native, factor, how many times as fast channels last was, and the pace where it is not 1"""

_H100: tuple[_Measured, ...] = (
    (_TENSOR, _BOTH, ("dense", "narrowing"), "channels last", 1.0, "0.97 to 2.96"),
    (_TENSOR, _BOTH, ("pixelwise",), "either", 1.04, "0.96 to 1.03"),
    (_TENSOR, _FORWARD, ("unaligned pixelwise",), "either", 0.71, "1.40 to 1.87"),
    (_TENSOR, _BACKWARD, ("unaligned pixelwise",), "either", 0.53, "1.89 to 2.93"),
    (("fp16", "bf16"), _FORWARD, ("wide few inputs",), "channels last", 1.0, "1.39 to 2.18, for cuDNN transposes"),
    (("tf32",), _FORWARD, ("wide few inputs",), "either", 0.72, "1.39 to 2.18"),
    (("fp16", "bf16"), _BACKWARD, ("wide few inputs",), "either", 0.78, "1.28 to 1.32"),
    (("tf32",), _BACKWARD, ("wide few inputs",), "either", 1.14, "0.88"),
    (("bf16",), _FORWARD, ("few inputs",), "either", 1.2, "0.83"),
    (("bf16",), _BACKWARD, ("few inputs",), "either", 0.61, "1.65 to 2.49"),
    (("fp16",), _FORWARD, ("few inputs",), "either", 0.66, "1.52 to 1.83"),
    (("fp16",), _BACKWARD, ("few inputs",), "either", 1.07, "0.94 to 1.71"),
    (("tf32",), _FORWARD, ("few inputs",), "either", 0.94, "1.07 to 1.35"),
    (("tf32",), _BACKWARD, ("few inputs",), "either", 1.55, "0.65 to 0.72"),
    (_TENSOR, _FORWARD, ("grouped",), "channels last", 1.0, "1.53 to 2.42"),
    (_TENSOR, _BACKWARD, ("grouped",), "channels last", 1.0, "1.10 to 2.24, all of RegNetY-040's training 1.06"),
    (("fp16", "bf16"), _FORWARD, ("unevenly grouped",), "either", 2.4, "0.42 to 0.95", 10.0),
    (("fp16", "bf16"), _BACKWARD, ("unevenly grouped",), "either", 2.2, "0.46 to 0.83", 12.0),
    (("tf32",), _FORWARD, ("unevenly grouped",), "either", 2.0, "0.50 to 0.89", 7.0),
    (("tf32",), _BACKWARD, ("unevenly grouped",), "either", 1.9, "0.52 to 1.22, 4.84 for one", 10.0),
    (_TENSOR, _FORWARD, ("finely grouped",), "channels last", 1.0, "1.97 to 2.24"),
    (("fp16", "bf16"), _BACKWARD, ("finely grouped",), "either", 2.1, "0.48 to 0.59"),
    (("tf32",), _BACKWARD, ("finely grouped",), "either", 1.0, "2.20 in one case; counted as no gain"),
    (("bf16",), _FORWARD, ("depthwise",), "either", 0.28, "3.67 to 4.91"),
    (("bf16",), _BACKWARD, ("depthwise",), "either", 0.2, "5.04 to 5.81"),
    (("fp16",), _FORWARD, ("depthwise",), "either", 0.75, "1.34 to 2.41"),
    (("fp16",), _BACKWARD, ("depthwise",), "either", 0.59, "1.71 to 2.29"),
    (_FULL, _FORWARD, ("depthwise",), "either", 0.45, "2.25 to 3.07"),
    (_FULL, _BACKWARD, ("depthwise",), "either", 0.29, "3.49 to 5.32"),
    (("fp16", "bf16"), _BOTH, ("wide depthwise",), "either", 0.22, "4.70 to 4.86"),
    (_FULL, _FORWARD, ("wide depthwise",), "either", 0.57, "1.78"),
    (_FULL, _BACKWARD, ("wide depthwise",), "either", 6.4, "0.16 to 0.42"),
    (("fp32",), _BOTH, (*_DENSE, "narrowing"), "channels first", 2.9, "0.35 to 1.21"),
    (("fp32",), _BOTH, _GROUPS, "channels first", 3.2, "0.31 to 4.51"),
)

# In channels last cuDNN launches a kernel for each channel of the image.
_H200: tuple[_Measured, ...] = (
    (("fp16", "bf16"), _FORWARD, ("multiplied depthwise",), "either", 8.0, "0.13 to 0.26"),
    (("fp16", "bf16"), _BACKWARD, ("multiplied depthwise",), "either", 2.7, "0.37 to 1.46"),
    (_FULL, _FORWARD, ("multiplied depthwise",), "either", 5.4, "0.19 to 0.26"),
    (_FULL, _BACKWARD, ("multiplied depthwise",), "either", 3.3, "0.31 to 0.53"),
)

_CPU: tuple[_Measured, ...] = (
    (("fp32",), _FORWARD, (*_DENSE,), "channels last", 1.0, "1.06 to 1.74"),
    (("fp32",), _FORWARD, ("narrowing",), "channels last", 1.0, "0.84 to 2.11; with their neighbours faster"),
    (("fp32",), _FORWARD, _GROUPED_ALIKE, "either", 1.0, "0.73 to 1.47"),
    (("fp32",), _FORWARD, ("finely grouped",), "either", 0.6, "1.67"),
    (("fp32",), _FORWARD, _NARROW_DEPTH, "either", 1.0, "0.99 to 2.73"),
    (("fp32",), _FORWARD, ("wide depthwise",), "either", 1.0, "0.67; with their neighbours as fast"),
    (("fp32",), _BACKWARD, ("dense",), "either", 1.1, "0.91 to 1.53"),
    (("fp32",), _BACKWARD, _PIXELWISE, "either", 1.02, "0.98 to 2.49"),
    (("fp32",), _BACKWARD, _FEW, "either", 0.86, "1.16 to 1.31"),
    (("fp32",), _BACKWARD, ("narrowing",), "either", 1.45, "0.69 to 0.92"),
    (("fp32",), _BACKWARD, _GROUPED_ALIKE, "either", 1.0, "0.74 to 1.21; all of RegNetY-040 1.14"),
    (("fp32",), _BACKWARD, ("finely grouped",), "either", 0.36, "2.83"),
    (("fp32",), _BACKWARD, _DEPTH, "either", 0.93, "2.77 to 3.03, 0.92 for small batches"),
)

# With one thread torch goes around oneDNN for what it thinks small (`_slow_conv2d`); with more it does not.
_CPU_THREADS: tuple[_Measured, ...] = (
    (("fp32",), _FORWARD, ("dense",), "channels last", 1.0, "0.86 to 2.10; with their neighbours as fast or faster"),
    (("fp32",), _FORWARD, (*_PIXELWISE, *_FEW), "channels last", 1.0, "1.03 to 2.20"),
    (("fp32",), _FORWARD, ("narrowing",), "channels last", 1.0, "0.99 to 1.75"),
    (("fp32",), _FORWARD, _GROUPED_ALIKE, "either", 1.0, "0.82 to 1.39; all of RegNetY-040 1.03"),
    (("fp32",), _FORWARD, ("finely grouped",), "either", 0.4, "2.54 to 2.62"),
    (("fp32",), _FORWARD, _NARROW_DEPTH, "either", 1.02, "0.98 to 8.99"),
    (("fp32",), _FORWARD, ("wide depthwise",), "either", 1.0, "0.70 to 0.79; with their neighbours as fast"),
    (("fp32",), _BACKWARD, ("dense",), "either", 1.25, "0.80 to 1.64"),
    (("fp32",), _BACKWARD, _PIXELWISE, "either", 1.09, "0.92 to 1.15"),
    (("fp32",), _BACKWARD, _FEW, "either", 0.95, "1.05 to 1.29"),
    (("fp32",), _BACKWARD, ("narrowing",), "either", 1.35, "0.75 to 0.95"),
    (("fp32",), _BACKWARD, _GROUPED_ALIKE, "either", 1.4, "0.71 to 1.24"),
    (("fp32",), _BACKWARD, ("finely grouped",), "either", 0.36, "2.80 to 3.37"),
    (("fp32",), _BACKWARD, _DEPTH, "either", 0.93, "2.82 to 3.55, 0.92 for small batches on one thread"),
)


def _rows(device: str, capability: int, measured: tuple[_Measured, ...], source: str) -> tuple[Row, ...]:
    return tuple(
        Row(device, capability, types, shapes, native, factor, source.format(speedup), passes, *pace)
        for types, passes, shapes, native, factor, speedup, *pace in measured
    )


ROWS: tuple[Row, ...] = (
    *_rows("cuda", 90, _H100, _HOPPER),
    *_rows("cuda", 90, _H200, _HOPPER_H200),
    Row("cuda", 70, ("fp16",), _DENSE, "channels last", 1.0, _TENSOR_CORES),
    Row("cuda", 80, _TENSOR, _DENSE, "channels last", 1.0, _TENSOR_CORES),
    Row("cuda", 70, _TENSOR, ("narrowing",), "either", 1.0, _NARROWING),
    Row("cuda", 70, _TENSOR, _DEPTH, "either", 1.0, _DEPTHWISE),
    Row("cuda", 70, _ALL, _GROUPS, "channels first", 31.0, _GROUPED),
    Row("cuda", 0, (*_ALL, "fp64"), (*_DENSE, "narrowing", *_DEPTH), "channels first", 2.0, _ORDINARY),
    *_rows("cpu", 2, _CPU_THREADS, _ZEN_THREADS),
    *_rows("cpu", 0, _CPU, _ZEN),
    Row("cpu", 0, ("bf16", "fp16"), (*_DENSE, "narrowing"), "channels last", 1.0, _ONEDNN, _FORWARD),
    Row("cpu", 0, ("bf16", "fp16"), (*_GROUPS, *_DEPTH), "either", 1.0, _ONEDNN, _FORWARD),
)

UNKNOWN = Row("", 0, (), (), "channels first", 2.0, "nothing is known of this device and type")


def find_row(device: str, capability: int, kind: str, shape: Shape, which: Pass) -> Row:
    """Returns the first row that fits, else one that keeps channels first."""
    for row in ROWS:
        fits = row.device == device and row.capability <= capability and kind in row.types
        if fits and shape in row.shapes and which in row.passes:
            return row
    return UNKNOWN
