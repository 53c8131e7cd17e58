"""What layouts cost. In: a Graph's nodes and a device. Out: microseconds, for a convolution in either layout and for a
copy from one into the other.

Time of a convolution: its FLOPs and bytes on the device (`litz.cost`), times the table's pace and, channels last, the
table's factor, and where the layout is not the library's own, a transposition of each operand and result: read once,
written once, by a kernel each. Times of convolutions count what is surely gained (`SURELY`), copies what they may cost
at most (`AT_MOST`): a plan must not lose.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.layout import restrided
from litz.target import rate_kind
from litz.target.times import memory
from litz_layout.frames import FIRST, LAST, tensor_of
from litz_layout.measured import Case, Figures, load_figures
from litz_layout.roles import CONVOLUTIONS, takes_part_in_statistics, takes_statistics_of_parts
from litz_layout.table import Native, Pass, Row, Shape, find_row
from litz_plugins import OptionsView, Target

SURELY = 0.8
"""The share of the time of an internal transposition's bytes that counts as saved, beside its launch. On an H200
cuDNN's took 12 µs each in ResNet-50 at batch 32, a quarter of the copy bandwidth (17 for 218 MB read and written in 206
µs)."""
AT_MOST = 1.25
"""How many times longer a copy may take than its bytes need."""
READ = 0.5
"""A loop that reads a tensor across its layout, in parts of a copy's time: litz's transposing loops reach 0.91 to 0.97
of the copy bandwidth (docs/lab/kernels.md, "transpose"), but a fused loop has other tensors to read as well."""

ALIGNED = 16
"""Bytes: where rows of a matrix have to begin for the tensor cores' fast loads."""

STATISTICS_NS = 10.0
"""Of a CPU thread, per element, where statistics of channels are taken against the layout. Of a concatenation of
channels in channels last: which part an element is in then changes within a vector (DenseNet-121's training took 31 to
45 ms more for 3.7 million such elements, one thread). Of a tensor that is read across: each vector is gathered from as
many cache lines (a batch norm of 4x128x24x24 took 3.1 ms instead of 0.5 on one thread, of 4x128x40x40 2.7 instead of
0.4 on four). AMD EPYC, 2026-11-21."""


@dataclass(frozen=True)
class ConvolutionCost:
    """Microseconds of a convolution channels first and channels last. why: where the figures are from."""

    us: tuple[float, float]
    native: Native
    why: str
    backward: bool = False


class Costs:
    """The costs in one graph. options: for the file of measurements. measured: instead of that."""

    def __init__(self, graph: Graph, target: Target, options: OptionsView, measured: Figures | None = None) -> None:
        self.graph, self.target = graph, target
        self.measured = measured or load_figures(options.get("layout.measurements"), self.target.name)

    def bytes_of(self, node: torch.fx.Node) -> float:
        """Returns the bytes of a node's tensor, symbolic sizes by their hints."""
        value = tensor_of(node)
        assert value is not None
        return float(prod(self.graph.hint(n) for n in value.shape) * value.dtype.itemsize)

    def pass_us(self, size: float) -> float:
        """Returns the µs of one pass over `size` bytes."""
        return memory(size, self.target).us / self.target.shares["copy"].usual

    def copy_us(self, node: torch.fx.Node) -> float:
        """Returns the most µs for a copy of a tensor into another layout, by its own kernel; 0 for frozen weights."""
        if node.op == "get_attr" and self.graph.frozen_values:
            return 0.0
        return 2 * self.pass_us(self.bytes_of(node)) * AT_MOST + self.target.launch_us

    def read_us(self, node: torch.fx.Node, user: torch.fx.Node) -> float:
        """Returns the µs that reading a tensor across its layout adds to the loop that uses it."""
        us = 2 * self.pass_us(self.bytes_of(node)) * READ
        if self.target.type == "cpu" and (takes_part_in_statistics(node) or takes_part_in_statistics(user)):
            us = max(us, self._statistics_us(node))
        return us

    def parts_us(self, node: torch.fx.Node) -> float:
        """Returns the µs that statistics of a concatenation's channels cost more in channels last; 0 off the CPU."""
        if self.target.type != "cpu" or not takes_statistics_of_parts(node):
            return 0.0
        return self._statistics_us(node)

    def _statistics_us(self, node: torch.fx.Node) -> float:
        value = tensor_of(node)
        assert value is not None
        return self.bytes_of(node) / value.dtype.itemsize * STATISTICS_NS / 1000 / self.target.units

    def convolution(self, node: torch.fx.Node, with_backward: bool = False) -> ConvolutionCost:
        """Returns a convolution's cost in each layout. with_backward: with its backward, in the same layout."""
        signature = signature_of(self.graph, node)
        if signature in self.measured.rows:
            return ConvolutionCost(self._measured_us(signature, with_backward), "either", "measured here")
        about = CONVOLUTIONS[node.target]
        passes: list[tuple[Pass, int]] = [("backward", _gradients(node))] if about.backward else [("forward", 1)]
        if with_backward:
            passes.append(("backward", 2))
        us, rows = [0.0, 0.0], []
        for which, times in passes:
            rows.append(self._row(node, which))
            for label, part in enumerate(self._pass(node, rows[-1], times)):
                us[label] += part
        why = "; ".join(dict.fromkeys(row.source for row in rows))
        native = rows[0].native
        if not self._library_keeps(node):
            us[LAST] += 1e6  # it would be copied back at once
            return ConvolutionCost((us[0], us[1]), native, "the library returns it channels first")
        return ConvolutionCost((us[0], us[1]), native, why)

    def _row(self, node: torch.fx.Node, which: Pass) -> Row:
        generation = self.target.units if self.target.type == "cpu" else self.target.capability
        return find_row(self.target.type, generation, self._kind(node), _shape(node), which)

    def _pass(self, node: torch.fx.Node, row: Row, times: int) -> tuple[float, float]:
        """Returns the µs of `times` matmuls of the convolution, channels first and channels last."""
        rate, _ = self.target.matrix_rate(rate_kind(_weight(node).dtype), "convolution")
        bare = times * self._flops(node) / (rate * self.target.shares["convolution"].usual)
        moved = times * sum(self.bytes_of(tensor) for tensor in _operands(node))
        transposed = times * self._transposed_us(node)
        least = max(bare, self.pass_us(moved)) * row.pace
        us = [least, least * row.factor]
        if row.native == "channels last":
            us[FIRST] += transposed
        elif row.native == "channels first":
            us[LAST] += transposed
        return us[FIRST], us[LAST]

    def _transposed_us(self, node: torch.fx.Node) -> float:
        """Returns the time that the library surely takes to transpose operands and result of one matmul, each by a
        kernel of its own where kernels are launched. What lies in both layouts alike (weights of one pixel) is not
        transposed. A plan's copy of weights is the same work, so that both count alike."""
        weight = node.args[CONVOLUTIONS[node.target].weight]
        tensors = [item for item in _operands(node) if _lies_in_one(self.graph, item)]
        launch = 0.0 if self.target.type == "cpu" else self.target.launch_us
        passes = (2 * self.pass_us(self.bytes_of(item)) * (AT_MOST if item is weight else SURELY) for item in tensors)
        return sum(passes) + len(tensors) * launch

    def _measured_us(self, signature: str, with_backward: bool) -> tuple[float, float]:
        """Measured times; of a forward with its backward three times as much, its two products being as large."""
        first, last = self.measured.rows[signature]
        return (3 * first, 3 * last) if with_backward else (first, last)

    def _kind(self, node: torch.fx.Node) -> str:
        kind = rate_kind(_weight(node).dtype)
        if kind == "fp32" and "convolution" in self.target.tf32:
            return "tf32"
        if self.target.type == "cpu" and not torch.backends.mkldnn.is_available():
            return "without oneDNN"
        return kind

    def _flops(self, node: torch.fx.Node) -> float:
        """Returns the FLOPs of one of the convolution's matmuls: output pixels, times the kernel, times a group's
        channels."""
        about = CONVOLUTIONS[node.target]
        transposed = bool(_parameter(node, 3))
        image = _value(node, about.image)
        result = _value(node, 0) if about.backward else node.meta["val"]
        pixels = image if transposed else result
        sizes = [self.graph.hint(n) for n in (*_weight(node).shape, pixels.shape[0], *pixels.shape[2:])]
        return 2.0 * prod(sizes)

    def _library_keeps(self, node: torch.fx.Node) -> bool:
        """Returns whether channels-last operands give a channels-last result, as far as this build of torch can say."""
        about = CONVOLUTIONS[node.target]
        value = _weight(node)
        if value.device.type == "cuda" and not torch.cuda.is_available():
            return True  # without a GPU torch picks a fallback of its own for fake CUDA tensors
        if about.backward and not _gradients(node):
            return True  # only the bias's
        # Symbolic sizes are nodes within lists.
        values: list[Any] = list(torch.fx.map_arg(node.args, lambda item: item.meta["val"]))
        for at in about.tensors:
            values[at] = restrided(values[at], (0, *range(2, values[at].dim()), 1))
        with torch_api.without_guards(self.graph.shape_env), torch_api.fake_mode_around(values[:1]):
            call: Any = node.target
            result = call(*values)
            if about.backward:
                result = result[0 if _wanted(node)[0] else 1]
        format_ = torch.channels_last if result.dim() == 4 else torch.channels_last_3d
        with torch_api.without_guards(self.graph.shape_env):
            return bool(result.is_contiguous(memory_format=format_))


def _value(node: torch.fx.Node, at: int) -> Any:
    """Returns the fake value of an argument that is a node."""
    argument: Any = node.args[at]
    return argument.meta["val"]


def _parameter(node: torch.fx.Node, at: int) -> Any:
    """Number `at` of stride, padding, dilation, transposed, output_padding, groups."""
    return node.args[CONVOLUTIONS[node.target].parameters + at]


def signature_of(graph: Graph, node: torch.fx.Node) -> str:
    """Returns a convolution as text, equal in all graphs that have it: op, type, sizes and parameters."""
    about = CONVOLUTIONS[node.target]
    sizes = "; ".join("x".join(str(graph.hint(n)) for n in _value(node, at).shape) for at in about.tensors)
    parameters = [_numbers(graph, _parameter(node, at)) for at in range(6)]
    mask = f" gradients {_wanted(node)}" if about.backward else ""
    name = "convolution_backward" if about.backward else "convolution"
    return f"{name} {str(_weight(node).dtype).removeprefix('torch.')} {sizes} {parameters}{mask}"


def case_of(graph: Graph, node: torch.fx.Node) -> Case:
    """Returns a convolution as `measured` times it."""
    about = CONVOLUTIONS[node.target]
    weight = _weight(node)
    return Case(
        signature_of(graph, node),
        str(weight.dtype).removeprefix("torch."),
        str(weight.device),
        tuple(tuple(graph.hint(n) for n in _value(node, at).shape) for at in about.tensors),
        tuple(_numbers(graph, _parameter(node, at)) for at in range(6)),
        tuple(_wanted(node)) if about.backward else None,
    )


def _numbers(graph: Graph, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_numbers(graph, item) for item in value]
    if isinstance(value, torch.fx.Node):
        value = value.meta["val"]
    return value if isinstance(value, bool) else graph.hint(value)


def _weight(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = _value(node, CONVOLUTIONS[node.target].weight)
    return value


def _wanted(node: torch.fx.Node) -> list[bool]:
    """Returns whether a backward is asked for each gradient: image, weight, bias."""
    mask: Any = node.args[10]
    return [bool(wanted) for wanted in mask]


def _gradients(node: torch.fx.Node) -> int:
    """Returns how many of a backward's two matmuls are asked for."""
    return sum(_wanted(node)[:2])


def _operands(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that one matmul of the convolution touches: image, weight and result."""
    about = CONVOLUTIONS[node.target]
    operands = [node.args[at] for at in about.tensors]
    return [item for item in (*operands, *(() if about.backward else (node,))) if isinstance(item, torch.fx.Node)]


def _lies_in_one(graph: Graph, node: torch.fx.Node) -> bool:
    """Returns whether channels first and channels last are different places for the elements of a tensor."""
    _, channels, *pixels = (graph.hint(n) for n in node.meta["val"].shape)
    return channels > 1 and prod(pixels) > 1


def _shape(node: torch.fx.Node) -> Shape:
    groups, transposed = _parameter(node, 5), bool(_parameter(node, 3))
    weight = _weight(node)
    outer, inner, *sides = (int(torch_api.hint_of(n)) for n in weight.shape)
    if groups != 1:
        if inner != 1 or transposed:
            if inner & (inner - 1):
                return "unevenly grouped"
            return "finely grouped" if inner < 8 else "grouped"
        if outer != groups:
            return "multiplied depthwise"
        return "wide depthwise" if min(sides) > 5 else "depthwise"
    if transposed:
        outer, inner = inner, outer
    if max(sides) == 1:
        return "pixelwise" if _rows_are_aligned(node) else "unaligned pixelwise"
    if inner <= 4:
        return "wide few inputs" if min(sides) > 5 else "few inputs"
    return "narrowing" if outer * 2 <= inner else "dense"


def _rows_are_aligned(node: torch.fx.Node) -> bool:
    """Returns whether the channels of image and result, as they lie channels first, begin at multiples of 16 bytes."""
    about = CONVOLUTIONS[node.target]
    tensors = [_value(node, about.image), _value(node, 0) if about.backward else node.meta["val"]]
    sizes = [prod(int(torch_api.hint_of(n)) for n in tensor.shape[2:]) * tensor.itemsize for tensor in tensors]
    return all(size % ALIGNED == 0 for size in sizes)
