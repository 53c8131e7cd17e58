"""From measurements of products and their users to a table of tiles, and from the table to default mode's choice."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses import FakeTensorMode

from litz.driver.dry_run import schedule_only
from litz.ir import KernelCall
from litz.schedule import choices
from litz_contractions.products.many_rows import Tile
from support.figures import figures_set
from support.no_gpu import gpu_hidden

sys.path.insert(0, str(Path(__file__).parents[2]))
with gpu_hidden():
    from benchmarks import epilogue_table, epilogues

ALIGNED, UNALIGNED = ("gpt2 up", "linear+residual"), ("4096x50257x768", "alone")
CANDIDATES = {ALIGNED: epilogues.CANDIDATES, UNALIGNED: epilogues.UNALIGNED_CANDIDATES}
TABLES = {ALIGNED: "many_rows__tiles", UNALIGNED: "many_rows__unaligned_tiles"}
PRODUCT_US = {ALIGNED: 60.0, UNALIGNED: 420.0}


def operations(taken: Any = None, case: tuple[str, str] = ALIGNED) -> list[Any]:
    """What default mode makes of a product and its users on a CUDA device that is not here."""
    torch._dynamo.reset()
    _, m, n, k = epilogues.SIZES[case[0]]
    users = epilogues.USERS[case[1]]
    with FakeTensorMode(), torch.no_grad():
        sizes = ((m, k), (n, k), (n,), (m, n))
        given = [torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in sizes]
        with mock.patch.object(choices, "by_estimate", taken or choices.by_estimate):
            options = {"disable_plugins": ("autotune",)}
            (schedule,) = schedule_only(lambda a, b, c, d: users(a, b.t(), c, d), given, options)
    return list(schedule.program.operations)


def row(part: float, case: tuple[str, str] = ALIGNED) -> dict[str, Any]:
    """A made-up row: the kernels take `part` of the product's time more than the product."""
    made = epilogues.Row(*case, sizes=list(epilogues.SIZES[case[0]][1:]))
    us = PRODUCT_US[case]
    made.us = {"product": us, **dict.fromkeys(("eager", "library", "now"), us / 0.6)}
    made.errors = {"eager": 1e-3}
    with figures_set(**{TABLES[case]: CANDIDATES[case]}):
        for number in range(len(CANDIDATES[case])):
            taken = epilogues._Taken(number, CANDIDATES[case])
            ops = operations(taken, case)
            assert taken.name and isinstance(ops[0], KernelCall)
            who = f"tile {number}"
            made.tiles[who], made.library = taken.tile, taken.library
            made.us[who], made.errors[who] = us * (1 + part) + number, 1e-3
    return asdict(made)


@pytest.mark.each_value
@pytest.mark.parametrize("case", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("part", "chosen"), [(0.1, True), (3.0, False)])
def test_what_was_measured_decides(
    part: float, chosen: bool, case: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"where": "nowhere", "capability": 90, "dtype": "bf16", "rows": [row(part, case)]}
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(data))
    epilogue_table.main([str(file)])
    text = capsys.readouterr().out
    shown = text[text.index("value = [") :]
    tiles = tomllib.loads(shown)["value"]
    assert bool(tiles) is chosen and ("tile 0 1.515" in text) is chosen, text
    every = [Tile(*found) for found in tomllib.loads(shown.replace("# [", "["))["value"]]
    assert [tile.apart for tile in every] == [tile.apart for tile in CANDIDATES[case]]
    with figures_set(**{TABLES[case]: every}):
        (*_, last) = operations(case=case)
        assert isinstance(last, KernelCall) is chosen
    with figures_set(**{TABLES[case]: None}):
        assert not any(isinstance(op, KernelCall) for op in operations(case=case))


def test_a_fit_covers_every_row_and_leaves_out_wrong_kernels() -> None:
    near, far = row(0.1), row(0.4)
    (tile,) = [found.tile for found in [epilogue_table.fit([near, far], "tile 0")] if found]
    for each in (near, far):
        cost = epilogue_table.cost_of(each, "tile 0")
        estimate = cost.estimate(tile)
        assert estimate.high_us - cost.library.low_us >= each["us"]["tile 0"] - each["us"]["product"] - 1e-6
    far["errors"]["tile 0"] = 1e-2
    assert "tile 0" not in epilogue_table.exact(far)["tiles"] and "tile 1" in epilogue_table.exact(far)["tiles"]


def test_cases_are_there_once() -> None:
    cases = epilogues.table_cases()
    assert len(set(cases)) == len(cases) == len(epilogues.TABLE_PRODUCTS) * len(epilogues.TABLE_USERS)
    assert all(case.partition(":")[0] in epilogues.PRODUCTS for case in cases)
    assert all(n % 8 for _, _, n, _ in epilogues.UNALIGNED.values())
