"""Wheels and sdists of all dists. In: the tracked files of the checkout. Out: two files for each dist in dist/.

A wheel is built from the unpacked sdist, so that an sdist which lacks a file is found here and not by who builds from
it. setuptools does the work; nothing is fetched.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .dists import ROOT, Dist, all_dists, problems_of

BACKEND = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
"""One step of a build, in the folder of a project: prints the name of the file that it made."""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.build", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files; emptied first")
    out: Path = parser.parse_args(given).out
    dists = all_dists()
    if problems := problems_of(dists):
        print("\n".join(problems), file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for dist in dists:
        for file in build(dist, out.resolve()):
            print(f"{file.relative_to(out.resolve())}  {file.stat().st_size / 1024:.0f} KiB")
    return 0


def build(dist: Dist, out: Path) -> tuple[Path, Path]:
    """(sdist, wheel) of a dist, in the folder `out`. Errors: ValueError if the wheel lacks a tracked file."""
    with tempfile.TemporaryDirectory(prefix="litz-release-") as folder:
        copy, unpacked = Path(folder) / "copy", Path(folder) / "unpacked"
        _copy_tracked(dist, copy)
        sdist = out / _step("sdist", copy, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (project,) = unpacked.iterdir()
        wheel = out / _step("wheel", project, out)
    _check(dist, wheel)
    return sdist, wheel


def _tracked(dist: Dist) -> list[Path]:
    """The files of a dist that git knows, relative to its folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=dist.folder, capture_output=True, check=True, text=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (dist.folder / name).is_file()]


def _copy_tracked(dist: Dist, to: Path) -> None:
    for file in _tracked(dist):
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(dist.folder / file, to / file)
    shutil.copy2(ROOT / "LICENSE", to / "LICENSE")


def _step(what: str, project: Path, out: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BACKEND, what, str(out)], cwd=project, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{project.name}: the {what} was not built:\n{done.stdout}{done.stderr}")
    return done.stdout.split()[-1]


def _check(dist: Dist, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {file.relative_to("src").as_posix() for file in _tracked(dist) if file.parts[0] == "src"}
    lacking = sorted(wanted - names)
    if not any(name.endswith("/LICENSE") for name in names):
        lacking.append("LICENSE")
    if lacking:
        raise ValueError(f"{wheel.name} lacks {', '.join(lacking[:10])}: see package-data in {dist.folder.name}")


if __name__ == "__main__":
    sys.exit(main())
