"""Attention for core's kernel: each case as a function, its inputs and tiles.

`python -m support.attention_matrix SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's interpreter
against float64 and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from litz.ir import KernelCall, Program, TensorRef
from litz.pipeline import make_compiler
from litz.schedule.choices import Replacement, substituted
from litz_contractions.attention.offer import kernel_call, written
from litz_contractions.attention.operation import Attention
from litz_contractions.attention.plan import make_plan
from litz_contractions.attention.tiles import Tiles
from support.eager_attention import called_directly, untraced
from support.interpreted import print_share
from support.kernel_programs import run
from support.pairwise import Axes, Row, Rule, matrix
from support.retarget import cuda_schedules

warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
SMALL = Tiles(32, 16, 4, 2)
TALL = Tiles(16, 32, 4, 2)
HALF = 8e-3

Make = Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def operands(
    batch: int = 2,
    heads: int = 2,
    queries: int = 40,
    keys: int = 50,
    width: int = 16,
    value_width: int | None = None,
    shared: int = 1,
    key_batch: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Make:
    """Query, key and value. shared: heads of the query that share one of the key."""

    def make() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        others = (key_batch or batch, heads // shared, keys)
        sizes = (batch, heads, queries, width), (*others, width), (*others, value_width or width)
        query, key, value = (torch.randn(size).to(dtype) for size in sizes)
        return query, key, value

    return make


ORDINARY = operands()


def transposed(make: Make) -> Make:
    """The same with heads behind positions in memory, as a linear layer leaves them."""

    def made() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in make())
        return query, key, value

    return made


def sliced(make: Make) -> Make:
    """The same as slices of wider tensors, which begin at an odd place."""

    def made() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = (F.pad(x, (3, 2))[..., 3:-2] for x in make())
        return query, key, value

    return made


@dataclass(frozen=True)
class Case:
    """What flex_attention is given. mask, block, per_batch, per_head: of the BlockMask. lse: is the logsumexp a result?
    most: are the maxima checked, which flex_attention does not return on a CPU? listed: are the mask's blocks for the
    kernel to look at?"""

    make: Make = ORDINARY
    score_mod: Callable[..., torch.Tensor] | None = None
    mask: Callable[..., torch.Tensor] | None = None
    block: int | tuple[int, int] = 32
    tiles: Tiles = SMALL
    dynamic: bool = False
    lse: bool = False
    most: bool = False
    tolerance: float = 2e-6
    scale: float | None = None
    per_head: bool = False
    per_batch: bool = False
    listed: bool = True

    def block_mask(self) -> BlockMask | None:
        if self.mask is None:
            return None
        query, key, _ = self.make()
        batch, heads = (query.shape[0] if self.per_batch else None), (query.shape[1] if self.per_head else None)
        sizes = (batch, heads, query.shape[2], key.shape[2])
        return create_block_mask(self.mask, *sizes, device="cpu", BLOCK_SIZE=self.block)

    def function(self) -> Callable[..., Any]:
        block_mask, lse = self.block_mask(), self.lse

        def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
            given = {"score_mod": self.score_mod, "block_mask": block_mask, "scale": self.scale}
            gqa = query.shape[1] != key.shape[1]
            return flex_attention(query, key, value, return_lse=lse, enable_gqa=gqa, **given)

        return f

    @functools.cache  # noqa: B019  several tests look at a case, which lives as long as its module
    def captured(self) -> tuple[Program, Attention, list[torch.Tensor]]:
        """The CUDA program, its attention, and its inputs, captured tensors among them."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune", "estimate")})
        torch.manual_seed(0)
        tensors, called = self.make(), list[list[Any]]()
        fn = self.function()
        if not self.dynamic:
            fn = called_directly(tensors, self.score_mod, self.block_mask(), self.scale, self.lse)

        def compiled(backend: Any) -> Any:
            return torch.compile(fn, backend=backend, dynamic=self.dynamic)(*tensors)

        (schedule,) = cuda_schedules(compiled, compiler, called=called)
        program = schedule.program
        (attention,) = (op for op in program.operations if isinstance(op, Attention))
        if not self.listed:
            program, attention = unlisted(program, attention)
        if self.most:
            name = str(attention.outputs[2])
            program = replace(program, outputs=(*program.outputs, TensorRef(name, program.buffers[name].layout)))
        return program, attention, [item for item in called[0] if isinstance(item, torch.Tensor)]

    def programs(self) -> tuple[Program, Program, list[torch.Tensor]]:
        """The CUDA program as it was captured, the same with the kernel in place of the library call, and its
        inputs."""
        program, attention, given = self.captured()
        return program, with_kernel(program, attention, self.tiles), given

    def kernel(self) -> KernelCall:
        (call,) = self.kernels([self.tiles])
        return call

    def kernels(self, several: Iterable[Tiles]) -> list[KernelCall]:
        """The kernel of each tiles, of a program that is captured once."""
        program, attention, _ = self.captured()
        replaced = [with_kernel(program, attention, tiles) for tiles in several]
        return [op for each in replaced for op in each.operations if isinstance(op, KernelCall)]

    def maxima(self, *tensors: torch.Tensor) -> torch.Tensor:
        """In powers of 2, as the op gives them."""
        blocks = self.block_mask() or create_block_mask(lambda b, h, q, k: q >= 0, None, None, 1, 1, device="cpu")
        score_mod = self.score_mod or (lambda score, b, h, q, k: score)
        scale = tensors[0].shape[-1] ** -0.5 if self.scale is None else self.scale
        return math_attention(*tensors, score_mod, blocks.as_tuple(), scale, {})[2]

    def check(self) -> str:
        """ "" or what is wrong with what the kernel computes."""
        _, program, given = self.programs()
        outputs = run(program, given)
        torch.manual_seed(0)
        tensors = self.make()
        exact = [tensor.double() for tensor in tensors]
        with untraced():
            expected = self.function()(*exact)
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        if self.most:
            expected = (*expected, self.maxima(*exact))
        for number, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            if output.shape != wanted.shape:
                return f"output {number} has shape {tuple(output.shape)}, should have {tuple(wanted.shape)}"
            if not torch.equal(output.isinf(), wanted.isinf()):
                return f"output {number} is infinite elsewhere"
            error = (output.double() - wanted).where(wanted.isfinite(), 0.0).abs().max().item()
            scale = wanted.where(wanted.isfinite(), 0.0).abs().max().item()
            if not error <= self.tolerance * max(scale, 1.0):
                return f"output {number}: error {error:.2e} of {scale:.2e}"
        return ""


def with_kernel(program: Program, attention: Attention, tiles: Tiles) -> Program:
    """The program with the attention's kernel in its place."""
    plan = make_plan(attention, program, written(attention, program), False)
    return substituted(program, attention, Replacement((kernel_call(plan, tiles),)))


def unlisted(program: Program, attention: Attention) -> tuple[Program, Attention]:
    """The same attention with a mask, and no list of blocks."""
    bare = replace(attention, blocks=None)
    operations = tuple(bare if op is attention else op for op in program.operations)
    return replace(program, operations=operations), bare


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(4, 200, generator=torch.Generator().manual_seed(1))
DOCUMENTS = torch.tensor([0] * 7 + [1] * 20 + [2] * 30 + [0] * 20)
LENGTHS = torch.tensor([33, 0, 1, 50])


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() <= 5


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return DOCUMENTS[q] == DOCUMENTS[k]


def padding(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A batch without any key among them."""
    return k < LENGTHS[b]


def far(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Windows that end before and begin behind some queries' keys: rows without a key."""
    return (k - q >= 20) & (k < 45) & (h >= 0)


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < 7) & (q + 3 >= k)


def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (k < 9) | (q >= k)


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h] * (k - q)


def alibi_of_type(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h].to(score.dtype) * (k - q)


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE[h, q - k + 100]


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.tanh(score / 20) * 20


def masked_by_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q >= k, score, -float("inf"))


def least_by_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Tiles of nothing but masked keys come before others, and rows of nothing else have even weights."""
    return torch.where((k >= 33) & (q != 3), score, torch.finfo(torch.float32).min)


LEAST_BIAS = torch.zeros(77).index_fill(0, torch.arange(33), torch.finfo(torch.float32).min)


def least_by_bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + LEAST_BIAS[k]


AXES: Axes = {
    "type": ("f32", "bf16", "fp16"),
    "lengths": ("odd", "even", "one-query", "one-key"),
    "widths": ("16-wide", "narrow", "two-parts", "cut-second-part"),
    "heads": ("two-heads", "grouped", "one-head", "one-key-batch"),
    "lies": ("in-rows", "transposed", "sliced"),
    "mask": ("unmasked", "causal", "near", "far", "document", "padding"),
    "score": ("as-is", "relative", "soft-cap", "masked-by-score", "least-by-score"),
    "scale": ("own-scale", "scale-0.3", "negative-scale"),
    "blocks": ("blocks-of-32", "uneven-blocks", "one-block", "odd-blocks", "bounded"),
    "lists": ("for-all", "per-head"),
    "tiles": ("tall", "wide", "square"),
    "results": ("result", "lse", "maxima"),
    "sizes": ("static", "dynamic"),
}
"""lengths: of queries and keys; "odd" has more queries, and no tile divides them. blocks: of the mask; "bounded": the
kernel walks between the mask's bounds. lists: has each head a list of blocks of its own?"""

DYNAMIC_TOO = {
    "type": ("f32",),
    "lengths": ("odd", "even"),
    "widths": ("16-wide",),
    "heads": ("two-heads", "grouped"),
    "lies": ("in-rows",),
    "score": ("as-is", "relative"),
    "scale": ("own-scale",),
    "blocks": ("blocks-of-32", "bounded"),
    "tiles": ("tall", "wide"),
}
"""What dynamic sizes are crossed with: a trace of them takes three times as long."""
NEVER: Sequence[Rule] = (
    # What only a mask has.
    {"mask": "unmasked", "blocks": AXES["blocks"][1:]},
    {"mask": "unmasked", "lists": "per-head"},
    {"mask": "unmasked", "heads": "one-key-batch"},  # torch wants a mask for each batch then
    # A tile that is part of two blocks has cases by name.
    {"blocks": "uneven-blocks", "tiles": "wide"},
    {"blocks": "odd-blocks", "tiles": ("tall", "wide")},
    # In half types the least number of float32 is -inf. In powers of 2 it is, too: no logsumexp and no maximum tells
    # a row of nothing else.
    {"type": ("bf16", "fp16"), "score": "least-by-score"},
    {"results": ("lse", "maxima"), "score": "least-by-score"},
    *({"sizes": "dynamic", axis: [v for v in AXES[axis] if v not in crossed]} for axis, crossed in DYNAMIC_TOO.items()),
)
SPARE: Sequence[Rule] = (
    # A kernel has the mask and the score as nodes: of what kind the other is neither asks. -inf and the least number
    # meet each kind: bounded on one side and on both, rows without a key, tables.
    {"mask": ("document", "padding"), "score": ("relative", "soft-cap")},
    # Lists of blocks are of numbers: which mask they come from no block asks.
    {"mask": ("far", "document", "padding"), "blocks": AXES["blocks"][1:-1]},
)
TYPES = {"f32": (torch.float32, 5e-6), "bf16": (torch.bfloat16, HALF), "fp16": (torch.float16, 1e-3)}
"""With the error that is allowed."""
LENGTHS_OF = {"odd": (70, 50), "even": (32, 64), "one-query": (1, 50), "one-key": (40, 1)}
WIDTHS = {
    **{"16-wide": (16, 16), "narrow": (3, 5), "two-parts": (192, 160), "cut-second-part": (130, 36)},
}
HEADS: Mapping[str, Mapping[str, int]] = {
    "two-heads": {},
    "grouped": {"heads": 4, "shared": 2},
    "one-head": {"heads": 1, "batch": 1},
    "one-key-batch": {"batch": 3, "key_batch": 1},
}
LIES = {"in-rows": lambda make: make, "transposed": transposed, "sliced": sliced}
MASKS = {
    **{"unmasked": None, "causal": causal, "near": near, "far": far, "document": document},
    **{"padding": padding},
}
SCORES = {
    **{"as-is": None, "relative": relative, "soft-cap": soft_cap, "masked-by-score": masked_by_score},
    **{"least-by-score": least_by_score},
}
SCALES = {"own-scale": None, "scale-0.3": 0.3, "negative-scale": -0.3}
BLOCKS: Mapping[str, int | tuple[int, int]] = {
    **{"blocks-of-32": 32, "uneven-blocks": (64, 16)},
    **{"one-block": (100, 72), "odd-blocks": 48, "bounded": 32},
}
TILES = {"tall": SMALL, "wide": TALL, "square": Tiles(16, 16, 4, 2)}


def case_of(row: Row) -> Case:
    """The case of a row of the matrix."""
    dtype, tolerance = TYPES[row["type"]]
    (queries, keys), (width, value_width) = LENGTHS_OF[row["lengths"]], WIDTHS[row["widths"]]
    heads = HEADS[row["heads"]]
    return Case(
        LIES[row["lies"]](
            operands(queries=queries, keys=keys, width=width, value_width=value_width, dtype=dtype, **heads)
        ),
        score_mod=SCORES[row["score"]],
        mask=MASKS[row["mask"]],
        block=BLOCKS[row["blocks"]],
        tiles=TILES[row["tiles"]],
        dynamic=row["sizes"] == "dynamic",
        lse=row["results"] != "result",
        most=row["results"] == "maxima",
        tolerance=tolerance,
        scale=SCALES[row["scale"]],
        per_head=row["lists"] == "per-head",
        per_batch=row["mask"] == "padding" or row["heads"] == "one-key-batch",
        listed=row["blocks"] != "bounded",
    )


ROWS = matrix(AXES, NEVER, SPARE)
ORDINARY_ROW = {axis: values[0] for axis, values in AXES.items()}
NEARLY_ORDINARY: Sequence[Row] = (
    {"widths": "narrow", "score": "least-by-score"},
    {"results": "lse", "sizes": "dynamic"},
    {"heads": "one-key-batch", "mask": "padding", "lists": "per-head"},
    {"widths": "narrow", "mask": "far", "blocks": "bounded", "results": "lse"},
    {"lengths": "one-key", "mask": "padding", "score": "relative"},
    {"score": "masked-by-score"},
    {"mask": "causal", "blocks": "bounded", "results": "lse"},
)
"""Pairs with what is ordinary, which the first rows have few of: with these CI has all that lists by hand had."""
CASES: Mapping[str, Case] = {
    **{name: case_of(row) for name, row in ROWS.items()},
    **{"nearly-" + "-".join(row.values()): case_of({**ORDINARY_ROW, **row}) for row in NEARLY_ORDINARY},
    # Each row has a key that the table leaves: of others a kernel cannot know.
    "least-by-bias": Case(score_mod=least_by_bias, lse=True),
    "no-bounds": Case(operands(heads=4, shared=2), mask=prefix, score_mod=relative, tiles=TALL),
    "dynamic-bounds": Case(operands(queries=70, keys=60), dynamic=True, mask=near, listed=False, lse=True),
    # Positions of more bits than the type has.
    "bf16-far": Case(operands(1, 4, 20, 400, dtype=torch.bfloat16), score_mod=alibi_of_type, tolerance=HALF),
    # Other values of what the axes have, for `make test-all`.
    "window": Case(mask=window, block=128, lse=True),
    "window-bounded": Case(operands(queries=70, keys=60), mask=window, listed=False, lse=True),
    "odd-widths-alibi": Case(operands(heads=4, width=24, value_width=40), score_mod=alibi, lse=True),
    "padded-one-key": Case(operands(keys=1, width=96, value_width=80), score_mod=alibi, lse=True),
    "one-key-head-alibi": Case(operands(heads=4, shared=4), score_mod=alibi),
    "scale-of-0": Case(scale=0.0),
    "blocks-longer-than-the-keys": Case(operands(queries=160, keys=32), mask=causal, block=(32, 128), lse=True),
    "blocks-longer-than-the-queries": Case(operands(queries=32, keys=96), mask=near, block=(128, 32), lse=True),
    # A tile is part of two blocks.
    "cut-blocks": Case(operands(queries=70, keys=60), mask=causal, block=(24, 40), lse=True),
    "cut-blocks-score": Case(operands(queries=37, keys=51, heads=4, shared=2), alibi, near, (20, 12), lse=True),
    "dynamic-cut-blocks": Case(operands(queries=70), dynamic=True, mask=document, block=(24, 20), lse=True),
    "dynamic-blocks": Case(operands(queries=70), dynamic=True, mask=document, block=64, lse=True),
}
FIRST = 14
"""Rows that CI runs. They have all values, and three of four pairs."""
LIKE_ANOTHER = (
    *list(ROWS)[FIRST:],
    *("window", "window-bounded", "odd-widths-alibi", "padded-one-key", "one-key-head-alibi", "scale-of-0"),
    *("blocks-longer-than-the-keys", "blocks-longer-than-the-queries"),
)
"""What `make test-all` runs: of each another case has the same parts of the kernel, in other pairs."""


if __name__ == "__main__":
    print_share(CASES)

__all__ = ["AXES", "CASES", "FIRST", "LIKE_ANOTHER", "NEVER", "ROWS", "SPARE", "Case", "operands"]
