"""Nests of attention on a processor: verified, run with torch against float64, shown; and what is wrong with wrong
ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from litz import report
from litz.ir import KernelCall
from litz.tiles import program as tile
from litz.tiles.program import Line, Nest
from litz_contractions.attention.nest_lines import Keys, Product, When
from litz_contractions.attention.plan import AttentionPlan, make_plan
from litz_contractions.attention.processor import write_blocked
from litz_contractions.module import Unsuitable
from litz_contractions.subprogram import Meaning, call_of, cut
from litz_testing.tiles.attention_nest import interpret_attention, verify_attention
from litz_testing.tiles.nest import TileError
from litz_tools.nest_text import nest_text
from litz_tools.tiles import tile_lines
from support import attention_matrix as matrix
from support.attention_matrix import Case, operands
from support.kernel_programs import run

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*"),
    pytest.mark.usefixtures("attention_untraced"),
]

ROWS, KEYS, PARALLEL = 8, 16, 100
"""Of a block, in place of 64 and 256, so that a few queries have several."""
FEW = {"batch": 1, "queries": 13, "keys": 37, "width": 4, "value_width": 5}


def few(**changes: Any) -> matrix.Make:
    return operands(**{**FEW, **changes})


CASES: Mapping[str, Case] = {
    "plain": Case(few(), lse=True),
    "one of each": Case(few(queries=1, keys=1, width=1, value_width=1), lse=True),
    "one row": Case(few(queries=1), lse=True),
    "whole blocks": Case(few(queries=16, keys=32), lse=True),
    "score": Case(few(heads=4, shared=2), score_mod=matrix.soft_cap, scale=-0.3),
    "causal": Case(few(), mask=matrix.causal, block=(8, 16), lse=True),
    "both sides, and a score": Case(few(), mask=matrix.near, score_mod=matrix.alibi, block=(8, 4)),
    "bounds without lists": Case(few(queries=20), mask=matrix.window, listed=False, lse=True),
    "queries without keys": Case(few(keys=45), mask=matrix.far, block=(8, 40), lse=True, most=True),
    "lists for batches": Case(few(batch=3, key_batch=1), mask=matrix.padding, per_batch=True, block=8),
    "lists for heads": Case(few(heads=4), mask=matrix.document, per_head=True, block=8),
    "lists that do not fit": Case(few(), mask=matrix.document, block=5),
    "bfloat16": Case(few(dtype=torch.bfloat16), score_mod=matrix.alibi, tolerance=matrix.HALF, lse=True),
    "float16, side by side": Case(matrix.transposed(few(dtype=torch.float16)), mask=matrix.causal, tolerance=1e-3),
    "slices": Case(matrix.sliced(few()), mask=matrix.prefix, lse=True),
    "sizes that are not known": Case(few(), mask=matrix.near, dynamic=True, lse=True),
}


def call(plan: AttentionPlan, tiles: Any = None) -> KernelCall:
    """The call of the kernel for a processor."""
    attention, meaning = plan.attention, Meaning(cut(plan.program, [plan.attention], plan.outputs))
    source = write_blocked(plan, attention.name, PARALLEL)
    return call_of(attention, meaning, source)


@contextmanager
def on_a_processor() -> Iterator[None]:
    """Cases have this kernel in place of the GPU's, in small blocks, and are run as nests."""
    found = {"kernel_call": call, "make_plan": partial(make_plan, scaled=True), "run": partial(run, tiles=True)}
    with (
        mock.patch.multiple("litz_contractions.attention.processor", ROWS=ROWS, KEYS=KEYS),
        mock.patch.multiple(matrix, **found),
    ):
        yield


@pytest.mark.ci_cases(
    *("one row", "one of each", "both sides, and a score", "bounds without lists", "queries without keys"),
    *("lists for batches", "lists that do not fit", "float16, side by side", "slices", "sizes that are not known"),
)
@pytest.mark.parametrize("name", CASES)
def test_an_attentions_nest_stores_what_float64_gives(name: str) -> None:
    with on_a_processor():
        assert CASES[name].check() == ""


@pytest.mark.nightly
@pytest.mark.slow
def test_every_attentions_nest_stores_what_float64_gives() -> None:
    """Of the GPU's cases too, but for those that check a position, which this kernel does not."""
    refused = list[str]()
    for name, case in matrix.CASES.items():
        try:
            with on_a_processor():
                assert case.check() == "", name
        except Unsuitable as why:
            assert str(why) == "a position is checked in it"
            refused.append(name)
    assert 2 * len(refused) < len(matrix.CASES)


def made(case: Case) -> tuple[Nest, dict[str, torch.Tensor]]:
    """A nest, and the memory of its buffers; results have 123."""
    with on_a_processor():
        _, program, given = case.programs()
    (kernel,) = (op for op in program.operations if isinstance(op, KernelCall))
    (nest,) = kernel.source.tiles  # type: ignore[union-attr]
    assert isinstance(nest, Nest)
    memory = dict(zip((item for item in program.inputs if isinstance(item, str)), given, strict=True))
    for name in nest.names.buffers.keys() - memory.keys():
        buffer = nest.buffers[name]
        memory[name] = torch.full([int(n) for n in buffer.layout.size], 123, dtype=buffer.dtype)
    return nest, memory


@pytest.fixture(scope="module")
def plain() -> tuple[Nest, dict[str, torch.Tensor]]:
    return made(CASES["plain"])


@pytest.fixture(scope="module")
def causal() -> tuple[Nest, dict[str, torch.Tensor]]:
    return made(CASES["causal"])


def changed(lines: Sequence[Line], change: Callable[[Line], Line | None]) -> tuple[Line, ...]:
    """The lines and all in them, changed."""
    found: list[Line] = []
    for line in lines:
        if isinstance(line, (tile.Each, Keys, When)):
            line = replace(line, body=changed(line.body, change))
        new = change(line)
        found += [] if new is None else [new]
    return tuple(found)


def by_line(nest: Nest, change: Callable[[Line], Line | None]) -> Nest:
    return replace(nest, lines=changed(nest.lines, change))


def without_a_room(line: Line) -> Line | None:
    return None if isinstance(line, tile.Room) and line.name == "score" else line


def of_a_small_room(line: Line) -> Line:
    return replace(line, count=16) if isinstance(line, tile.Room) and line.name == "query" else line


def of_close_rows(line: Line) -> Line:
    return replace(line, left=replace(line.left, step=3)) if isinstance(line, Product) and line.turned else line


def of_no_block(line: Line) -> Line:
    return replace(line, sizes=("b", *line.sizes[1:])) if isinstance(line, Product) else line


def in_lanes(line: Line) -> Line:
    return replace(line, vector=True) if isinstance(line, tile.Each) and line.axis == "q" else line


def without_an_open_block(line: Line) -> Line:
    return replace(line, value=replace(line.value, text="other")) if isinstance(line, Keys) else line


def in_one_place(line: Line) -> Line:
    if not isinstance(line, tile.Store):
        return line
    return replace(line, access=replace(line.access, offset=0 * line.access.offset))


WRONG: Mapping[str, tuple[Callable[[Line], Line | None], str]] = {
    "no room": (without_a_room, "the room score is used, and is not there"),
    "a small room": (of_a_small_room, "a matrix of 8 rows does not lie in query"),
    "close rows": (of_close_rows, "rows of 4 elements lie 3 apart in query"),
    "no block": (of_no_block, "b is no block of a product"),
    "lanes": (in_lanes, "When stands in the lanes of q"),
    "no condition": (without_an_open_block, "open is used, and is not there"),
    "one place": (in_one_place, "at one place"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_complains_of(name: str, causal: tuple[Nest, Any]) -> None:
    (nest, _), (change, said) = causal, WRONG[name]
    complaints = list(verify_attention(by_line(nest, change)))
    assert any(said in complaint for complaint in complaints), complaints


def test_a_product_that_reaches_beyond_a_buffer_is_an_error(plain: tuple[Nest, dict[str, torch.Tensor]]) -> None:
    def beyond(line: Line) -> Line:
        if not isinstance(line, Product) or isinstance(line.right.of, str):
            return line
        access = replace(line.right.of, offset=line.right.of.offset + 10**6)
        return replace(line, right=replace(line.right, of=access))

    nest, memory = plain
    with pytest.raises(TileError, match="a product reaches beyond the buffer"):
        interpret_attention(by_line(nest, beyond), memory)


def difference(nest: Nest, memory: Mapping[str, torch.Tensor], other: Nest) -> float:
    """How far what two nests store is apart."""
    stored = []
    for each in (nest, other):
        own = {name: tensor.clone() for name, tensor in memory.items()}
        interpret_attention(each, own)
        stored.append(own)
    return max(float((stored[0][name] - stored[1][name]).abs().max()) for name in memory)


def always_open(line: Line) -> Line:
    return replace(line, lower=(), upper=(), exact=True) if isinstance(line, Keys) else line


def never_fading(line: Line) -> Line | None:
    return None if isinstance(line, When) and getattr(line.of, "text", "") != "open" else line


def test_a_block_that_is_wrongly_called_open_shows(causal: tuple[Nest, dict[str, torch.Tensor]]) -> None:
    assert difference(*causal, by_line(causal[0], always_open)) > 0.01


def test_sums_that_do_not_fade_show(plain: tuple[Nest, dict[str, torch.Tensor]]) -> None:
    assert difference(*plain, by_line(plain[0], never_fading)) > 0.01


def test_the_nest_is_the_one_that_docs_show() -> None:
    case = Case(operands(queries=100, keys=300, width=32), mask=matrix.causal, listed=False)
    with mock.patch(f"{__name__}.ROWS", 64), mock.patch(f"{__name__}.KEYS", 256):
        text = nest_text(made(case)[0]).replace("cuda:0", "cpu")  # the cases are the GPU's
    docs = (Path(__file__).parents[2] / "docs/tiles.md").read_text()
    assert "".join(f"    {line}\n" for line in text.splitlines()) in docs


def test_lists_are_shown(causal: tuple[Nest, Any]) -> None:
    text = nest_text(causal[0])
    assert " at 0x" not in text and "(text=" not in text
    assert "entries p6[n + 3*((q//8))] at q = first place n length 16 known" in text


def test_explain_tiles_shows_it() -> None:
    q = torch.randn(1, 2, 5, 4)
    with report.collect() as reports, torch.no_grad():
        torch.compile(lambda q: flex_attention(q, q, q), backend="litz", options={"graph_cache": False})(q)
    lines = [line.strip() for line in tile_lines(reports)]
    assert "nest" in lines and "each h<2" in lines
    assert any(line.endswith(" = reduce sum of f32") for line in lines)
