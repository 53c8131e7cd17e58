"""Releases: what all dists have to agree on, and that a wheel has every file of its package."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest
from release.build import build
from release.dists import ROOT, all_dists, problems_of
from release.trial import readme_example


def test_all_dists_are_of_one_version() -> None:
    dists = all_dists()
    assert problems_of(dists) == []
    assert [dist.name for dist in dists[:2]] == ["litz-plugins", "litz"] and len(dists) >= 6
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None and cited[1] == dists[0].version


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("plugins/pyproject.toml", 'version = "', 'version = "9.', "litz-plugins is of version 9."),
        ("testing/pyproject.toml", "litz==", "litz==9.", "litz-testing needs litz==9."),
        ("core/pyproject.toml", '"litz-layout==', '"other==', "litz[all] lacks litz-layout=="),
        ("core/src/litz/__init__.py", '__version__ = "', '__version__ = "9.', "litz.__version__ is 9."),
    ],
)
def test_what_differs_is_found(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    for dist in all_dists():
        at = tmp_path / dist.folder.name
        (at / "src" / dist.package.name).mkdir(parents=True)
        shutil.copy(dist.folder / "pyproject.toml", at)
        for name in ("__init__.py", "py.typed"):
            shutil.copy(dist.package / name, at / "src" / dist.package.name)
    assert problems_of(all_dists(tmp_path)) == []
    changed = tmp_path / file
    changed.write_text(changed.read_text().replace(old, new))
    assert any(problem.startswith(says) for problem in problems_of(all_dists(tmp_path)))


@pytest.mark.nightly
def test_a_wheel_has_every_file_of_its_package(tmp_path: Path) -> None:
    """`build` raises for a file that git knows and the wheel lacks; the plugin API has templates beside its modules."""
    sdist, wheel = build(all_dists()[0], tmp_path)
    assert sdist.name.endswith(".tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"litz_plugins/py.typed", "litz_plugins/manager.py"} <= names
    assert any(name.endswith("LICENSE") for name in names)


@pytest.mark.nightly
def test_the_example_of_the_readme_is_found() -> None:
    assert 'backend="litz"' in readme_example()
    with pytest.raises(ValueError, match="no example"):
        readme_example("nothing")
