"""The tool that compares the texts of two commits: the same code writes the same, and a difference is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import same_texts

NAMES = ("fuzz/004", "contraction/rows_softmax")


def write(folder: Path) -> list[Path]:
    for name in NAMES:
        same_texts._write_item(same_texts.Item(name), folder, str(folder.parent / "cache"))
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_a_difference_is_found_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    files = write(old)
    assert write(new) == files and same_texts.main(["compare", str(old), str(new)]) == 0
    assert {path.parts[3] for path in files if len(path.parts) > 3} == {"cpu", *same_texts.GPUS}
    assert not [path for path in files if path.name == "raised.txt"]
    kernels = [path for path in files if path.parent.name == "kernels"]
    assert {path.parts[3] for path in kernels} == {"cpu", *same_texts.GPUS}
    changed, gone = kernels[0], files[-1]
    (new / changed).write_text((new / changed).read_text().replace("symbol = ", "symbol = other_", 1))
    (new / gone).unlink()
    capsys.readouterr()
    assert same_texts.main(["compare", str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert f"{changed}:" in said and "+symbol = other_" in said and f"{gone}: not in {new}" in said
    assert f"2 of {len(files) - 1} files differ" in said


def test_paths_and_addresses_are_left_out() -> None:
    text = "<object at 0x7f12ab34cd56> of /tmp/some/where.py:12, 0xff and a / b"
    assert same_texts.cleaned(text) == "<object at ADDRESS> of PATH, 0xff and a / b"
    assert same_texts.cleaned("from litz.runtime.helpers import f, g") == "from litz import f, g"


def test_names_that_moved_are_found_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = same_texts.LITZ.keys() - {"schedule_program", "schedule_lowered"}  # a tree has one of the two
    assert all(same_texts.of_litz(name) is not None for name in here)
    monkeypatch.setattr(
        same_texts, "LITZ", {"make_compiler": ("litz.nowhere", "litz.driver.compiler"), "lost": ("litz.ir",)}
    )
    assert same_texts.of_litz("make_compiler") is not None
    with pytest.raises(ImportError, match=r"no lost in litz\.ir"):
        same_texts.of_litz("lost")
