"""Products of many rows by kernels that do their users too, without a measurement; and products that were padded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from litz import report as reports
from litz.ir import KernelCall, Template
from litz.ir.verify import verify
from litz.pipeline import make_compiler
from litz.schedule.implementations import ContractionRecord
from litz.target import figures_of, target_named
from litz.targets.triton.compile import compile_kernel, make_target
from litz_contractions.products.many_rows import ManyRowsFigures, Tile, offer_many_rows
from litz_plugins import Estimate
from support.compare import NO_GPU
from support.figures import set_figures
from support.interpreted import interpreted
from support.many_rows_cases import CASES, SMALL, UNALIGNED, known
from support.no_gpu import gpu_hidden
from support.retarget import cuda_schedules

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks.epilogues import CANDIDATES, UNALIGNED_CANDIDATES

LEAST_FILLED = figures_of(target_named("H100"), ManyRowsFigures).least_filled_share


@pytest.fixture(autouse=True)
def all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are offered however little of the device a product fills."""
    set_figures(monkeypatch, many_rows__least_filled_share=0.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles that small products fill."""
    set_figures(monkeypatch, many_rows__tiles=(SMALL,), many_rows__unaligned_tiles=UNALIGNED)
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def problems() -> Mapping[str, str]:
    return interpreted("support.many_rows_cases")


@pytest.mark.parametrize("name", CASES)
def test_gives_what_float64_gives(name: str, problems: Mapping[str, str]) -> None:
    assert problems[name] == ""


@pytest.mark.ci_cases(
    "bias-gelu", "padded-bias-of-a-batch", "four-apart", "apart-bf16", "residual-of-a-transpose", "padded-bf16"
)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.offers])
def test_one_kernel_does_all_and_compiles_for_hopper(name: str, small: None) -> None:
    _, program = CASES[name].programs()
    (call,) = program.operations
    verify(program)
    assert isinstance(call, KernelCall) and compile_kernel(call.source, make_target((9, 0))).asm["cubin"]


@pytest.mark.parametrize("tile", CANDIDATES, ids=str)
def test_every_tile_compiles_for_hopper(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, many_rows__tiles=(tile,))
    a, b = torch.empty(512, 128, dtype=torch.bfloat16), torch.empty(128, 512, dtype=torch.bfloat16)
    case = replace(CASES["relu"], make=lambda: (a, b))
    (call,) = case.programs()[1].operations
    assert isinstance(call, KernelCall) and compile_kernel(call.source, make_target((9, 0))).asm["cubin"]


@pytest.mark.parametrize("tile", UNALIGNED_CANDIDATES, ids=str)
def test_every_tile_for_rows_that_begin_anywhere_compiles_for_hopper(
    tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of rows that begin alike stores 16 bytes at a time; one of neighbours an element."""
    set_figures(monkeypatch, many_rows__unaligned_tiles=(tile,))
    x, w = torch.empty(1024, 128, dtype=torch.bfloat16), torch.empty(1001, 128, dtype=torch.bfloat16)
    (call,) = replace(CASES["apart"], make=lambda: (x, w)).programs()[1].operations
    assert isinstance(call, KernelCall)
    built = compile_kernel(call.source, make_target((9, 0)))
    assert ("st.global.v4.b32" in built.asm["ptx"]) is tile.apart and "wgmma" in built.asm["ptx"]


def test_where_nobody_measured_the_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, many_rows__tiles=None)
    before, after = CASES["relu"].programs()
    assert after is before


@pytest.mark.parametrize(("rows", "taken"), [(8192, True), (1024, False)])
def test_what_was_measured_on_hopper_is_taken_where_it_fills_the_device(
    rows: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8192 x 3072 results are 768 tiles of 128 x 256 for 132 multiprocessors; 1024 x 512 are 16."""
    set_figures(monkeypatch, many_rows__least_filled_share=LEAST_FILLED)
    columns = 3072 if taken else 512
    a, b = torch.empty(rows, 768, dtype=torch.bfloat16), torch.empty(768, columns, dtype=torch.bfloat16)
    before, after = replace(CASES["relu"], make=lambda: (a, b)).programs()
    assert any(isinstance(op, KernelCall) for op in after.operations) is taken
    assert (after is before) is not taken


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "taken"),
    [(2048, 2048, 2048, True), (32768, 128, 128, True), (2048, 4096, 11008, False), (8192, 768, 3072, False)],
)
def test_a_residual_is_as_far_away_for_both(
    rows: int, columns: int, depth: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel, and the library's call with an addition after it, read the residual at the same price. On an H200
    (2026-11-24) the library took 34.8, 21.7, 247.0 and 64.9 µs for these, the better of the two tiles 32.7, 15.6, 242.9
    and 68.0."""
    set_figures(monkeypatch, many_rows__least_filled_share=LEAST_FILLED)
    torch._dynamo.reset()
    records: list[ContractionRecord] = []
    sizes = (rows, depth), (columns, depth), (columns,), (rows, columns)
    args = [torch.empty(size, dtype=torch.bfloat16) for size in sizes]
    compiled = lambda backend: torch.compile(lambda x, w, b, r: F.linear(x, w, b) + r, backend=backend)(*args)
    cuda_schedules(compiled, make_compiler(), contractions=records)
    assert ("with 1 user" in records[0].chosen.name) is taken, records[0]


def test_what_does_not_fill_the_device_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 132 tiles fills an H100; one more tile makes a second wave."""
    set_figures(monkeypatch, many_rows__tiles=CANDIDATES)
    times = []
    for rows in (128 * 66, 128 * 66 + 1):
        a, b = torch.empty(rows, 64, dtype=torch.bfloat16), torch.empty(64, 512, dtype=torch.bfloat16)
        before, _ = replace(CASES["relu"], make=lambda a=a, b=b: (a, b)).programs()
        (template,) = (op for op in before.operations if isinstance(op, Template))
        estimate = offer_many_rows(template, known(before, template))[0].estimate
        assert isinstance(estimate, Estimate) and estimate.low_us <= estimate.us <= estimate.high_us
        times.append(estimate.high_us)
    assert times[1] > 1.5 * times[0]


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("columns", [1001, 1002, 30522])
def test_on_a_gpu_a_bias_of_rows_that_begin_anywhere(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_figures(monkeypatch, many_rows__unaligned_tiles=(Tile(128, 256, 3, 8, 0.1),))
    torch._dynamo.reset()
    x, w, b = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((1024, 768), (columns, 768), columns)
    )
    options = {"layout.pad": "always", "graph_cache": False, "disable_plugins": ("autotune",)}
    with torch.no_grad():
        found = torch.compile(F.linear, backend="litz", options=options, dynamic=False)(x, w, b)
    exact = x.double() @ w.double().t() + b.double()
    error, usual = ((each.double() - exact).norm() / exact.norm() for each in (found, F.linear(x, w, b)))
    assert found.is_contiguous() and error < 1.1 * usual


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize(("rows", "columns"), [(1024, 1001), (1032, 1002), (1028, 1004), (512, 50257)])
@pytest.mark.parametrize("tile", [Tile(128, 256, 3, 8, 0.1, apart=True), Tile(64, 256, 4, 4, 0.1, apart=True)], ids=str)
def test_on_a_gpu_rows_that_begin_anywhere_are_those_of_float64(
    rows: int, columns: int, tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns before the first are coordinates below 0 for TMA; nothing beside the result is written."""
    major, _ = torch.cuda.get_device_capability()
    set_figures(monkeypatch, many_rows__unaligned_tiles=(tile,))
    torch._dynamo.reset()
    x, w = (torch.randn(size, 768, device="cuda", dtype=torch.bfloat16) for size in (rows, columns))
    options = {"layout.pad": "always", "graph_cache": False, "disable_plugins": ("autotune",)}
    with torch.no_grad(), reports.collect() as collected:
        found = torch.compile(F.linear, backend="litz", options=options, dynamic=False)(x, w)
    fits = major == 9 and rows // (8 // gcd(8, columns)) * 2 > tile.m
    assert any(" apart" in each.chosen for each in collected[0].decisions) is fits
    exact = x.double() @ w.double().t()
    error, usual = ((each.double() - exact).norm() / exact.norm() for each in (found, F.linear(x, w)))
    assert found.is_contiguous() and error < 1.1 * usual
