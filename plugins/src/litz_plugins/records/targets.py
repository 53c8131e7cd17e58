"""A device as cost models and passes see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Share:
    """The share of a device's peak that kernels of a kind reach, from 0 to 1. best: at best. usual: usually. worst: at
    worst."""

    best: float
    usual: float
    worst: float


SHARES: Mapping[str, Share] = {
    # 0.9 or more of the bandwidth is what copies reach (BabelStream; 0.9 on the H100 by litz's own calibration); a
    # kernel with odd strides or a short row reaches half.
    "memory": Share(0.95, 0.85, 0.5),
    "copy": Share(0.95, 0.85, 0.5),
    # Peaks count a multiply-add as two, which a body of other operations cannot have.
    "loop": Share(1.0, 0.4, 0.15),
    # Large square matmuls of cuBLAS: 0.6 to 0.8 of the dense peak; odd sizes far less.
    "matmul": Share(0.9, 0.65, 0.25),
    "convolution": Share(0.85, 0.5, 0.12),
    # FlashAttention-2 and -3 papers: 0.35 (A100, backward) to 0.75 (H100, forward) of the peak.
    "attention": Share(0.8, 0.5, 0.2),
    "other": Share(1.0, 0.5, 0.05),
}
"""The shares of a `Target` that does not say: those of a GPU."""


ALLOCATORS = ("torch", "pool", "cuda")
"""The allocators that a `Target` names by a word; others are functions, by their paths."""


class Figures(Mapping[str, Any]):
    """Figures of a device by name ("tilings.two_loads_elements"): what rooms of the compiler go by, beside a target's
    speeds. A value is a number, a word, a bool, or a tuple of such. Never changed; `figures | more` gives new ones, in
    which those of `more` go first. Errors: TypeError for a value that could be changed."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __hash__(self) -> int:
        return self._hash

    def __or__(self, more: Mapping[str, Any]) -> Figures:
        return Figures({**self._values, **more})

    def __repr__(self) -> str:
        return f"Figures({self._values!r})"

    def __reduce__(self) -> tuple[type[Figures], tuple[dict[str, Any]]]:
        return Figures, (self._values,)  # the hash of words is another in each process


@dataclass(frozen=True)
class Target:
    """A device as data: what it is, how fast it is, what it can do. Made once a compile for each of its devices, and
    read by every pass, cost model and code generator; nobody else asks the driver or has a figure of a device.

    type: torch's ("cpu", "cuda", ...). index: None for the only one. name: as the driver says it ("NVIDIA H100 80GB
    HBM3"), '' when unknown. capability: CUDA's compute capability times ten, 0 for other devices. source: where the
    figures are from. assumed: there is no such device here, or nobody knows it, and the figures are of a stand-in.
    measured: the figures that a calibration file gave, by its names ("bandwidth_gb_s", "matrix_tflops.bf16"): speeds
    that were reached; the others are peaks, of which `shares` says what kernels of a kind reach. rough: a processor
    that nobody measured; its figures serve to compare loops with each other, not to say what a program takes.

    units: multiprocessors or threads, which work independently. bandwidth: to and from memory, in bytes per
    microsecond. launch_us: what a kernel adds however little the kernel does. vector, matrix: FLOPs per microsecond of
    the ordinary units, and of those for contractions, by kind of dtype ("fp64", "fp32", "tf32", "fp16", "bf16", "int8",
    "fp8"). shares: of the peaks, what kernels of a kind reach. tf32: where torch allows TF32 for float32 ("matmul",
    "convolution").

    cache_bytes: of the last cache. row_bytes: how much of a reduction's row stays close enough for a second pass to be
    free. shared_bytes: of the memory that a block of threads shares. registers: of a unit, of 32 bits each. threads: of
    a unit, at most. warp: how many threads run in step and load together. line_bytes: of a line of the caches.
    sector_bytes: what memory moves at least. most_buffers: how many buffers one kernel may take; kernels that do the
    same and share a launch take more together, unless this is less than usual. file: the name of the device's data file
    ("h100"), '' if the device has none. figures: for rooms of the compiler (`litz.target.data`), such as thresholds and
    tables of tiles, in place of those of the data files.

    abilities: words. "blocks": kernels run as blocks of threads, of which a unit takes a few at a time, and memory
    is read in lines that neighbouring threads share. "finish": the last block of a kernel can combine what all have
    stored (`Kernel.finish`). "arena": small buffers are worth having fixed places in one allocation. "recording":
    CUDA graphs can record a call. "separate_bias": the library adds a convolution's bias by a kernel of its own (unless
    it is depthwise and channels first), so that a Loop does as well and may fuse. "attention": core has kernels of it;
    "attention_blocks": one that calls BLAS on blocks. "products": the code generator loads litz's own kernels of
    products, which are Triton texts. "library_epilogue": the library's product does a bias and an activation in one
    call (`torch._addmm_activation`). "fused_attention": torch has fused kernels of scaled_dot_product_attention in half
    types. "user_kernels": the code generator launches users' own Triton kernels.
    "beside": the code generator's `join` puts the sources of several kernels in one launch (`Kernel.beside`).
    "float8": kernels load and store float8, and convert it. "one_walk": over a row that is too long to keep, a kernel
    finds the maximum and the sum of exponentials that depends on it in one walk. "library_windows": the library's
    gradients of max pools and resampling are quicker than kernels in which each element searches for the windows that
    read it. "tma": a unit of its own brings tiles of tensors to shared memory (`tl.make_tensor_descriptor`).

    allocator: "torch" (`torch.empty_strided`), "pool" (litz's pool of host memory), "cuda" (torch's CUDA allocator, of
    the current device) or "package.module:function", a function that is called with size, stride and dtype and returns
    a tensor on the current device. guard: a context manager around a call that makes the device the current one, as
    Python text, '' for none. addressed: tensors of the device have memory, whose addresses kernels take. aligned:
    kernels assume that inputs which they only read start at multiples of 16 bytes. asynchronous: the host goes on while
    a kernel runs.
    """

    type: str
    index: int | None = None
    name: str = ""
    capability: int = 0
    source: str = "nobody knows this device"
    assumed: bool = False
    measured: frozenset[str] = frozenset()
    rough: bool = False
    units: int = 1
    bandwidth: float = 1e4
    launch_us: float = 2.0
    vector: Mapping[str, float] = field(default_factory=lambda: {"fp32": 1e4}, hash=False)
    matrix: Mapping[str, float] = field(default_factory=dict, hash=False)
    shares: Mapping[str, Share] = field(default_factory=lambda: SHARES, hash=False, repr=False)
    tf32: frozenset[str] = frozenset()
    cache_bytes: int = 1 << 20
    row_bytes: int = 128 << 10
    shared_bytes: int = 0
    registers: int = 0
    threads: int = 1
    warp: int = 32
    line_bytes: int = 128
    sector_bytes: int = 32
    most_buffers: int = 48
    file: str = ""
    figures: Figures = field(default_factory=Figures, repr=False)
    abilities: frozenset[str] = frozenset()
    allocator: str = "torch"
    guard: str = ""
    addressed: bool = True
    aligned: bool = False
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if self.allocator not in ALLOCATORS and not all(self.allocator.partition(":")):
            known = ", ".join(map(repr, ALLOCATORS))
            raise ValueError(
                f"target {self.type!r}: allocator is {known} or 'package.module:function', not {self.allocator!r}"
            )

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @property
    def usual_bandwidth(self) -> float:
        """Returns the bytes per microsecond that kernels usually reach."""
        return self.bandwidth * (1.0 if "bandwidth_gb_s" in self.measured else self.shares["memory"].usual)

    @property
    def usual_flops(self) -> float:
        """Returns the FLOPs per microsecond that loops in float32 usually reach. A measured rate is discounted too, as
        calibration times contractions, and no loop is as fast as those."""
        return self.vector["fp32"] * self.shares["loop"].usual

    def vector_rate(self, kind: str) -> tuple[float, str]:
        """Returns the FLOPs per microsecond of the ordinary units for a kind of dtype, and the name of that figure."""
        if kind in self.vector:
            return self.vector[kind], f"vector_tflops.{kind}"
        # Integers run at half the fp32 rate (64 of 128 lanes of an SM from Ampere on); 64-bit ones at less, but then
        # they are few beside the bytes they move.
        rate = self.vector["fp32"]
        return (rate / 2 if kind in ("int", "int8") else rate), "vector_tflops.fp32"

    def matrix_rate(self, kind: str, use: str = "matmul") -> tuple[float, str]:
        """Returns the FLOPs per microsecond of a contraction in a kind of dtype, and the name of that figure.

        use: "matmul" or "convolution", for which torch allows TF32 separately. A kind that the matrix units lack runs
        on the ordinary ones.
        """
        if kind == "fp32" and use in self.tf32 and "tf32" in self.matrix:
            kind = "tf32"
        if kind in self.matrix:
            return self.matrix[kind], f"matrix_tflops.{kind}"
        return self.vector_rate(kind)


TargetOf = Callable[[Any], Target]
"""Returns the target of a device (a torch.device) in one compile."""


def unknown_target(device: Any) -> Target:
    """Returns a target for a device that nobody describes: its figures serve only to compare loops."""
    return Target(getattr(device, "type", str(device)), getattr(device, "index", None), assumed=True)
