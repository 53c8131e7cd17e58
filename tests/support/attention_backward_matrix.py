"""flex_attention's backward, for its kernels: each case as functions, sizes and a pair of tiles.

`python -m support.attention_backward_matrix SHARD SHARDS` (with TRITON_INTERPRET=1) runs the kernels in Triton's
interpreter against float64 autograd of the dense formula and prints, for each case, "" or what went wrong, as JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from litz.driver.stages import capture, lowerings
from litz.ir import KernelCall, Loop, Program, TensorRef
from litz.ir import interpret as ir_interpret
from litz.ir.interpret import evaluate
from litz.lower import lower
from litz.pipeline import make_compiler
from litz.schedule.choices import substituted
from litz_contractions.attention.offer import backward_plan, backward_replacement
from litz_contractions.attention.operation import AttentionBackward
from litz_contractions.attention.tiles import BackwardTiles, Tiles
from litz_contractions.subprogram import on_device
from support.eager_attention import called_directly
from support.interpreted import print_share
from support.kernel_programs import run_tiles
from support.pairwise import Axes, Row, Rule, matrix
from support.retarget import to_cuda

Mod = Callable[..., torch.Tensor]
SMALL = BackwardTiles(Tiles(32, 16, 4, 2), Tiles(16, 32, 4, 2))
SQUARE = BackwardTiles(Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2))


@dataclass(frozen=True)
class Case:
    """One attention and its backward.

    query: (B, H, Q, D). key: (B', H', K, D). width: of a value's head, that of the key if None. score: score_mod. mask:
    mask_mod, for which a BlockMask is made with `blocks` for (B, H), each of them or 1 (`mask_for`). lse: does the loss
    read logsumexp ("both", "only")? strides: "transposed" for tensors that lie as (B, length, H, D), "expanded" for a
    gradient of one number. loss_scale: of the gradients that come in. wanted: whose gradients, of query, key and value.
    unfit: there is no kernel for it; part of the reason.
    """

    query: tuple[int, int, int, int]
    key: tuple[int, int, int, int]
    width: int | None = None
    score: Mod | None = None
    mask: Mod | None = None
    blocks: int | tuple[int, int] = 32
    mask_for: tuple[bool, bool] = (False, False)
    dtype: torch.dtype = torch.float32
    lse: str = ""
    strides: str = ""
    dynamic: bool = False
    tiles: BackwardTiles = SMALL
    tolerance: float = 2e-5
    loss_scale: float = 1.0
    wanted: tuple[int, ...] = (0, 1, 2)
    unfit: str = ""

    def tensors(self) -> list[torch.Tensor]:
        """query, key, value, the gradients of the result and of logsumexp."""
        torch.manual_seed(0)
        value = (*self.key[:3], self.width or self.key[3])
        out = (*self.query[:3], value[3])
        found = [self._laid(torch.randn(size)).to(self.dtype) for size in (self.query, self.key, value)]
        grad = (
            torch.randn(()).to(self.dtype).expand(out) if self.strides == "expanded" else self._laid(torch.randn(out))
        )
        grad = grad * self.loss_scale if self.loss_scale != 1 else grad
        return [t.to(DEVICE) for t in (*found, grad.to(self.dtype), torch.randn(self.query[:3]))]

    def _laid(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if self.strides == "transposed" else x

    def block_mask(self) -> Any:
        if self.mask is None:
            return None
        batch, heads = (n if wanted else None for n, wanted in zip(self.query, self.mask_for))
        if self.query[0] != self.key[0]:
            batch = self.query[0]
        return create_block_mask(
            self.mask, batch, heads, self.query[2], self.key[2], device=DEVICE, BLOCK_SIZE=self.blocks
        )

    def step(self, attention: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients that are wanted. attention: of query, key and value, the result and logsumexp (natural)."""
        given = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors[:3]]
        wanted = [given[number].requires_grad_() for number in self.wanted]
        out, lse = attention(*given)
        parts = [] if self.lse == "only" else [(out, tensors[3].to(out.dtype))]
        if self.lse:
            parts.append((lse, tensors[4].to(lse.dtype)))
        found = torch.autograd.grad([x for x, _ in parts], wanted, [g for _, g in parts], allow_unused=True)
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(wanted, found)]

    def compiled(self, backend: Any) -> Callable[..., Any]:
        """The attention of (query, key, value): (result, logsumexp). backend: None for eager."""
        block_mask = self.block_mask()
        if callable(backend) and not self.dynamic:  # what a user would have, else
            tensors = self.tensors()[:3]
            direct = called_directly(tensors, self.score, block_mask, None, True)
            return torch.compile(direct, backend=backend, dynamic=False)

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flex_attention(
                q, k, v, score_mod=self.score, block_mask=block_mask, enable_gqa=True, return_lse=True
            )

        return attention if backend is None else torch.compile(attention, backend=backend, dynamic=self.dynamic)

    def program(self) -> Program:
        """The program of the backward's graph, on CUDA."""
        torch._dynamo.reset()
        compiler = make_compiler(None, {"disable_plugins": ("autotune",)})
        programs: list[Program] = []
        notes: list[Any] = []

        def keep(graph: Any) -> Callable[[list[Any]], Sequence[Any]]:
            if graph.kind == "backward":
                programs.append(lower(to_cuda(graph), lowerings(compiler), compiler.options, None, notes.append))

            def run(args: list[Any]) -> Sequence[Any]:
                if graph.kind == "backward":
                    ARGUMENTS[:] = args
                return torch.fx.Interpreter(graph.module).run(*args)

            return run

        with backward_allowed():
            self.step(self.compiled(partial(capture, compile_graph=keep, compiler=compiler)), self.tensors())
        NOTES[:] = notes
        (program,) = programs
        return program

    def kernels(self) -> Program:
        """The program with kernels in place of the library call."""
        program = self.program()
        operation = attention_of(program)
        assert operation is not None, [note.reason for note in NOTES]
        return substituted(
            program, operation, backward_replacement(backward_plan(operation, program, False), self.tiles)
        )

    def expected(self) -> list[torch.Tensor]:
        """The same in float64, by autograd of the formula."""
        wide = [t.double() for t in self.tensors()]
        return self.step(self.dense, wide)

    def dense(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The formula: (result, logsumexp)."""
        batches, heads, queries, depth = query.shape
        group = heads // key.shape[1]
        key, value = (t.expand(batches, -1, -1, -1).repeat_interleave(group, 1) for t in (key, value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(depth)
        lengths = (batches, heads, queries, key.shape[2])
        at = torch.meshgrid(*(torch.arange(n, device=query.device) for n in lengths), indexing="ij")
        if self.score is not None:
            scores = self.score(scores, *at)
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask(*at), -math.inf)
        empty = (scores == -math.inf).all(-1, keepdim=True)
        weights = torch.where(empty, 0.0, scores.masked_fill(empty, 0.0)).softmax(-1).masked_fill(empty, 0.0)
        return weights @ value, scores.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty[..., 0], 0.0)

    def check(self) -> str:
        """ "" or what is wrong with what the kernels compute."""
        program = self.kernels()
        found = [x for x in run(program, ARGUMENTS) if x is not None]
        names = [("query", "key", "value")[number] for number in self.wanted]
        for name, output, wanted in zip(names, found, self.expected(), strict=True):
            if output.shape != wanted.shape:
                return f"the {name}'s gradient has shape {tuple(output.shape)}, should have {tuple(wanted.shape)}"
            error = (output.double() - wanted).abs().max() / wanted.abs().max().clamp(min=0.1)
            if not error <= self.tolerance:
                return f"the {name}'s gradient: relative error {error:.2e}"
        return ""


ARGUMENTS: list[Any] = []
"""What the backward's graph was last called with."""
NOTES: list[Any] = []
"""What was decided when it was lowered."""


@contextmanager
def backward_allowed() -> Iterator[None]:
    """torch refuses to trace the backward on a CPU, though what runs it there is right."""
    with mock.patch.object(flex, "_validate_device", lambda *_: None):
        yield


def attention_of(program: Program) -> AttentionBackward | None:
    return next((op for op in program.operations if isinstance(op, AttentionBackward)), None)


def cpu(program: Program) -> Program:
    """The program with all its buffers on the CPU."""
    return on_device(program, torch.device("cpu"))


def run(program: Program, given: Sequence[Any], tiles: bool = False) -> list[torch.Tensor | None]:
    """The program on CPU tensors: kernels in Triton's interpreter, or as TilePrograms, everything else in the IR's."""
    from litz_testing.triton_interpreter import interpret_source

    memory: dict[str, torch.Tensor] = dict(program.constants)
    sizes: dict[Any, int] = {}
    for item, value in zip(program.inputs, given, strict=True):
        if isinstance(item, str):
            memory[item] = value
            ir_interpret._bind_layout(sizes, program.buffers[item].layout, value)
        elif getattr(item, "is_Symbol", False):
            sizes[item] = int(value)
    here = cpu(program)
    for operation in program.operations:
        if isinstance(operation, Loop):
            ir_interpret.run_loop(replace(operation, device=torch.device("cpu")), here, memory, sizes)
        elif isinstance(operation, KernelCall):
            for name in filter(None, operation.outputs):
                memory[name] = _allocated(program, name, sizes)
            if tiles:
                run_tiles(operation.source, memory, sizes)
                continue
            source = replace(operation.source, text=_for_interpreter(operation.source.text))
            buffers = [memory[item] for item in source.arguments if isinstance(item, str)]
            values = [evaluate(item, sizes) for item in source.arguments if not isinstance(item, str)]
            interpret_source(source, buffers, values)
        else:
            ir_interpret._run_extern(operation, here, memory, sizes)
    return [ir_interpret.view(out, memory, sizes) if isinstance(out, TensorRef) else None for out in program.outputs]


def _allocated(program: Program, name: str, sizes: Mapping[Any, int]) -> torch.Tensor:
    """Memory with numbers in it that would be noticed."""
    buffer = program.buffers[name]
    shape, stride = ([evaluate(e, sizes) for e in part] for part in (buffer.layout.size, buffer.layout.stride))
    room = max(1, evaluate(buffer.layout.span, sizes))
    return torch.full((room,), 123).to(buffer.dtype).as_strided(shape, stride)


def _for_interpreter(text: str) -> str:
    """It multiplies the bits of bf16 as if they were integers."""
    if "bf16" not in text:
        return text
    found = re.sub(r"tl\.dot\((\w+), (tl\.trans\(\w+\)|\w+)", r"tl.dot(\1.to(tl.float32), \2.to(tl.float32)", text)
    return found


# Bodies. Tables are those that a user would capture.

DEVICE = "cpu"
"""Where tensors and tables are."""


def place(device: str) -> None:
    """Move all that."""
    names = ("SLOPES", "DOCUMENTS", "WORDS", "BIAS", "TABLE", "DIVISORS")
    globals().update({name: globals()[name].to(device) for name in names}, DEVICE=device)
    globals()["LEARNED"] = LEARNED.detach().to(device).requires_grad_()


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
DOCUMENTS = torch.arange(100) // 29
WORDS = torch.tensor([13, 70])


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def sliding(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k < 24)


def document(b: Any, h: Any, q: Any, k: Any) -> Any:
    return causal(b, h, q, k) & (DOCUMENTS[q] == DOCUMENTS[k])


def padding(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k < WORDS[b]


def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (h % 2 == 0) | (q >= k)


def empty_rows(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q % 3 != 0) & (q < 50)


def alibi(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + SLOPES[h].to(score.dtype) * (k - q)


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5 * torch.tanh(score / 5)


def squared(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q >= k, score * score * 0.3, score)


def masked_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Some queries look at nothing, though no mask says so."""
    return torch.where((q >= k) & (q % 5 != 3), score, -math.inf)


def constant_score(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0 + (q - k) * 0.01


BIAS = torch.randn(4, 100, 100)
TABLE = torch.randn(21)


def bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + BIAS[h, q, k].to(score.dtype)


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * torch.sigmoid(TABLE[(q - k).clamp(-10, 10) + 10].to(score.dtype))


DIVISORS = torch.arange(1, 101) * 0.1


def divided(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Beyond the ends a kernel has 0 / 0."""
    return score / DIVISORS[q].to(score.dtype) / DIVISORS[k].to(score.dtype)


LEARNED = torch.randn(4, requires_grad=True)


def learned(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + LEARNED[h]


BASE = Case((1, 2, 70, 16), (1, 2, 70, 16))
HALF = 1e-2

AXES: Axes = {
    "type": ("f32", "fp16", "bf16"),
    "lengths": ("even", "odd", "one-query", "more-queries"),
    "heads": ("two-heads", "grouped", "one-key-batch"),
    "mask": ("unmasked", "causal", "sliding", "by-head", "empty-rows"),
    "score": ("as-is", "alibi", "soft-cap", "minus-infinity", "divided"),
    "blocks": ("blocks-of-32", "cut-blocks", "one-block"),
    "loss": ("of-result", "of-both", "of-lse"),
    "lies": ("in-rows", "transposed", "expanded"),
    "wanted": ("all", "query-only", "key-only", "value-only"),
    "tiles": ("uneven-tiles", "square"),
    "sizes": ("static", "dynamic"),
}
"""lies: the tensors; "expanded": a gradient of one number. wanted: whose gradients."""
DYNAMIC_TOO = {
    "type": ("f32",),
    "lengths": ("even", "more-queries"),
    "heads": ("two-heads", "grouped"),
    "lies": ("in-rows",),
    "wanted": ("all",),
    "loss": ("of-result",),
}
"""What dynamic sizes are crossed with: a trace of them takes twice as long."""
NEVER: Sequence[Rule] = (
    {"mask": "unmasked", "blocks": AXES["blocks"][1:]},
    {"mask": "unmasked", "heads": "one-key-batch"},  # torch wants a mask for each batch then
    {"loss": "of-lse", "lies": "expanded"},  # no gradient of the result comes in
    {"loss": ("of-both", "of-lse"), "wanted": "value-only"},  # no value is part of logsumexp
    {"type": ("fp16", "bf16"), "score": "divided"},  # by a hundredth: what a half type rounds away is large
    *({"sizes": "dynamic", axis: [v for v in AXES[axis] if v not in crossed]} for axis, crossed in DYNAMIC_TOO.items()),
)
TYPES = {"f32": (torch.float32, 2e-5), "fp16": (torch.float16, HALF), "bf16": (torch.bfloat16, 3e-2)}
"""With the error that is allowed."""
LENGTHS_OF = {"even": (64, 64), "odd": (37, 51), "one-query": (1, 70), "more-queries": (70, 40)}
HEADS = {"two-heads": ((1, 2), (1, 2)), "grouped": ((2, 4), (2, 2)), "one-key-batch": ((2, 4), (1, 2))}
MASKS = {"unmasked": None, "causal": causal, "sliding": sliding, "by-head": by_head, "empty-rows": empty_rows}
SCORES = {
    **{"as-is": None, "alibi": alibi, "soft-cap": soft_cap, "minus-infinity": masked_score, "divided": divided},
}
BLOCKS: Mapping[str, int | tuple[int, int]] = {"blocks-of-32": 32, "cut-blocks": (20, 12), "one-block": 128}
WANTED = {"all": (0, 1, 2), "query-only": (0,), "key-only": (1,), "value-only": (2,)}


def case_of(row: Row) -> Case:
    """The case of a row of the matrix."""
    dtype, tolerance = TYPES[row["type"]]
    # Half a unit in the last place of a saved logsumexp of hundreds is 1.5e-5, and as much of each weight.
    tolerance += 2e-5 * (row["score"] == "divided")
    (queries, keys), (own, shared) = LENGTHS_OF[row["lengths"]], HEADS[row["heads"]]
    return Case(
        (*own, queries, 16),
        (*shared, keys, 16),
        width=9 if row["lengths"] == "odd" else None,
        score=SCORES[row["score"]],
        mask=MASKS[row["mask"]],
        blocks=BLOCKS[row["blocks"]],
        mask_for=(row["mask"] == "by-head", row["mask"] == "by-head"),
        dtype=dtype,
        lse={"of-result": "", "of-both": "both", "of-lse": "only"}[row["loss"]],
        strides={"in-rows": ""}.get(row["lies"], row["lies"]),
        dynamic=row["sizes"] == "dynamic",
        tiles=SQUARE if row["tiles"] == "square" else SMALL,
        tolerance=tolerance,
        wanted=WANTED[row["wanted"]],
    )


ROWS = matrix(AXES, NEVER)
FIRST = 15
"""Rows that CI runs. They have all values, and four of five pairs."""
NAMED: Mapping[str, Case] = {
    "odd": replace(BASE, query=(1, 2, 37, 20), key=(1, 2, 51, 20), width=9),
    "one": replace(BASE, query=(1, 1, 1, 16), key=(1, 1, 1, 16)),
    "one-query": replace(BASE, query=(2, 2, 1, 16), key=(2, 2, 70, 16), score=alibi),
    "causal-whole-blocks": replace(BASE, query=(1, 2, 128, 16), key=(1, 2, 128, 16), mask=causal, tiles=SQUARE),
    "block-larger-than-the-queries": replace(
        BASE, query=(1, 2, 64, 16), key=(1, 2, 256, 16), mask=sliding, blocks=128, tiles=SQUARE
    ),
    "block-larger-than-the-keys": replace(
        BASE, query=(1, 2, 160, 16), key=(1, 2, 32, 16), mask=causal, score=soft_cap, blocks=(64, 128), tiles=SQUARE
    ),
    "cut-blocks": replace(BASE, mask=causal, blocks=(24, 40)),
    "cut-blocks-sliding": replace(BASE, mask=sliding, blocks=(20, 12), tiles=SQUARE),
    "alibi-causal": replace(BASE, score=alibi, mask=causal),
    "squared": replace(BASE, score=squared, key=(1, 2, 40, 16)),
    "constant-score": replace(BASE, score=constant_score),
    "bias": replace(BASE, score=bias),
    "relative": replace(BASE, score=relative, mask=causal),
    "document": replace(BASE, mask=document, score=soft_cap),
    "padding": replace(BASE, query=(2, 2, 70, 16), key=(2, 2, 70, 16), mask=padding, mask_for=(True, False)),
    "by-both": replace(BASE, query=(2, 2, 70, 16), key=(2, 2, 70, 16), mask=by_head, mask_for=(True, True)),
    "lse": replace(BASE, lse="both"),
    "lse-only": replace(BASE, lse="only", score=soft_cap),
    "group": replace(BASE, query=(2, 4, 100, 16), key=(2, 2, 60, 16), score=alibi),
    "group-by-head": replace(BASE, query=(2, 4, 64, 16), key=(2, 2, 64, 16), mask=by_head, mask_for=(True, True)),
    "one-key-for-all": replace(BASE, query=(2, 4, 50, 16), key=(1, 2, 60, 16), mask=padding, score=alibi),
    "wants-key": replace(BASE, score=soft_cap, mask=causal, wanted=(1,)),
    # Only gradients of scores that are scaled fit into the type.
    "fp16-large": replace(
        BASE,
        **{"query": (1, 2, 20, 64), "key": (1, 2, 4, 64), "wanted": (0, 1)},
        **{"dtype": torch.float16, "tolerance": HALF, "loss_scale": 12_000.0},
    ),
    "dynamic-one-key-for-all": replace(
        BASE, dynamic=True, query=(3, 4, 50, 16), key=(1, 2, 60, 16), mask=causal, score=alibi
    ),
    "bf16": replace(BASE, dtype=torch.bfloat16, mask=causal, score=soft_cap, tolerance=3e-2),
    "bf16-wide": replace(BASE, query=(1, 2, 40, 80), key=(1, 2, 40, 80), dtype=torch.bfloat16, tolerance=3e-2),
    "dynamic-group": replace(
        BASE, dynamic=True, query=(2, 4, 70, 16), key=(2, 2, 50, 16), mask=by_head, mask_for=(True, True), lse="both"
    ),
    "dynamic-bias": replace(BASE, dynamic=True, score=bias, mask=sliding, dtype=torch.float16, tolerance=HALF),
    "captured-gradient": replace(BASE, score=learned, unfit="captured"),
}
"""Other values of what the axes have, and what a test looks at by name."""
LIKE_ANOTHER = (
    *list(ROWS)[FIRST:],
    *(
        name
        for name in NAMED
        if name not in ("causal-whole-blocks", "document", "fp16-large", "bf16-wide", "bias", "dynamic-group")
    ),
)
"""What `make test-all` runs: of each another case has the same parts of the kernels, in other pairs."""
CASES: Mapping[str, Case] = {**{name: case_of(row) for name, row in ROWS.items()}, **NAMED}


if __name__ == "__main__":
    print_share({name: case for name, case in CASES.items() if not case.unfit})

__all__ = [
    *("AXES", "CASES", "FIRST", "LIKE_ANOTHER", "NAMED", "NEVER", "NOTES", "ROWS"),
    *("Case", "attention_of", "backward_allowed", "cpu", "place", "run"),
]
