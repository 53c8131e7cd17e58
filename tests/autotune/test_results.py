"""Stored measurements: parallel writers, damage, and moving them between machines."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from litz.cache.disk import Cache
from litz.cli.main import main
from litz_autotune.measurement import Measurement, failed
from litz_autotune.problem import Operand, Problem
from litz_autotune.results import FILE, KIND, Counters, LocalStore, Record

PROBLEM = Problem("mm", (Operand((2, "n0"), (3, 1), "f32"),), ("mm",), (7,), "NVIDIA H100")
RECORD = Record(PROBLEM, {"library": Measurement(10.0, 0.1, 5), "triton a": failed("crashed")})
KEY = PROBLEM.key


def store(folder: Path) -> LocalStore:
    return LocalStore(Cache(folder), Counters())


def test_a_record_is_measured_once_and_found_by_others(tmp_path: Path) -> None:
    first, second = store(tmp_path), store(tmp_path)
    assert first.make(KEY, lambda: (RECORD, True)) == RECORD
    assert second.make(KEY, lambda: pytest.fail("measured again")) == RECORD
    assert (first.counters.local_misses, first.counters.local_puts, first.counters.local_hits) == (1, 1, 0)
    assert (second.counters.local_misses, second.counters.local_puts, second.counters.local_hits) == (0, 0, 1)


def test_parallel_askers_measure_once(tmp_path: Path) -> None:
    measured: list[int] = []

    def ask(number: int) -> Record:
        return store(tmp_path).make(KEY, lambda: (measured.append(number), (RECORD, True))[1])  # type: ignore[func-returns-value]

    with ThreadPoolExecutor(8) as pool:
        assert all(record == RECORD for record in pool.map(ask, range(16)))
    assert len(measured) == 1


def test_what_is_incomplete_is_used_and_not_kept(tmp_path: Path) -> None:
    assert store(tmp_path).make(KEY, lambda: (RECORD, False)) == RECORD
    assert store(tmp_path).find(KEY) is None


@pytest.mark.parametrize("damage", ["", "{", "{}", "null"])
def test_a_damaged_record_is_measured_anew(tmp_path: Path, damage: str) -> None:
    store(tmp_path).make(KEY, lambda: (RECORD, True))
    (tmp_path / KIND / KEY / FILE).write_text(damage)
    again = store(tmp_path)
    assert again.find(KEY) is None
    assert again.make(KEY, lambda: (RECORD, True)) == RECORD
    assert store(tmp_path).find(KEY) == RECORD


@pytest.mark.parametrize("change", [{"us": "1e400", "runs": 1e400}, {"us": float("nan")}, {"noise_us": -1}, {"us": []}])
def test_what_a_server_may_hold_is_no_record(change: dict[str, object]) -> None:
    data = json.loads(RECORD.to_json())
    data["measured"]["library"] |= change
    for text in (json.dumps(data), "[" * 100_000, b"\xff", "null", '{"format": "litz-autotune", "version": 1}'):
        with pytest.raises(ValueError):
            Record.from_json(text)


def test_export_and_import_between_caches(tmp_path: Path) -> None:
    store(tmp_path / "a").make(KEY, lambda: (RECORD, True))
    file = tmp_path / "results.json"
    run = CliRunner().invoke
    assert "1 problem " in run(main, ["tune", "export", str(file), "--dir", str(tmp_path / "a")]).output
    assert "1 problem " in run(main, ["tune", "import", str(file), "--dir", str(tmp_path / "b")]).output
    assert store(tmp_path / "b").find(KEY) == RECORD
    assert "0 problems" in run(main, ["tune", "import", str(file), "--dir", str(tmp_path / "b")]).output
    assert "library 10 µs" in run(main, ["tune", "list", "--dir", str(tmp_path / "b")]).output
    both = ["--json", "--dir", str(tmp_path / "b")]
    assert json.loads(run(main, ["tune", "export", str(file), *both]).output) == {"file": str(file), "problems": 1}
    assert json.loads(run(main, ["tune", "import", str(file), *both]).output) == {"file": str(file), "problems": 0}
    assert "nothing was measured yet" in run(main, ["tune", "list", "--dir", str(tmp_path / "empty")]).output


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"format": "other"}', '{"format": "litz-autotune", "records": {"../../x": {}}}']
)
def test_what_is_no_export_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    done = CliRunner().invoke(main, ["tune", "import", str(tmp_path / "results.json"), "--dir", str(tmp_path / "c")])
    assert done.exit_code == 1 and "Error" in done.output
    assert not (tmp_path / "c" / KIND).exists()


def test_a_key_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    data = {"format": "litz-autotune", "version": 1, "records": {"../../evil": json.loads(RECORD.to_json())}}
    (tmp_path / "results.json").write_text(json.dumps(data))
    done = CliRunner().invoke(main, ["tune", "import", str(tmp_path / "results.json"), "--dir", str(tmp_path / "c")])
    assert done.exit_code == 1 and "no digest" in done.output


def test_what_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["tune", "export", str(tmp_path / "absent" / "x.json"), "--dir", str(tmp_path)])
    assert done.exit_code == 1 and "x.json cannot be written: No such file" in done.output


def test_the_command_is_listed() -> None:
    assert "tune" in CliRunner().invoke(main, ["--help"]).output
    text = CliRunner().invoke(main, ["tune", "--help"]).output
    assert "..." not in text.partition("Commands:")[2] and max(map(len, text.splitlines())) <= 80
