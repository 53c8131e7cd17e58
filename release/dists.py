"""The dists of this checkout: where they are, what they say of themselves, and what of that has to agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^(litz(?:-[a-z]+)?)(?:\[[a-z,]+\])?(==.*)?$")


@dataclass(frozen=True)
class Dist:
    """One distribution. folder: of its pyproject.toml."""

    folder: Path

    @cached_property
    def project(self) -> dict[str, Any]:
        """The table [project] of its pyproject.toml."""
        found: dict[str, Any] = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return found

    @property
    def name(self) -> str:
        return str(self.project["name"])

    @property
    def version(self) -> str:
        return str(self.project["version"])

    @property
    def package(self) -> Path:
        """The folder of the package that it installs: litz-autotune installs litz_autotune."""
        return self.folder / "src" / self.name.replace("-", "_")


def all_dists(root: Path = ROOT) -> list[Dist]:
    """Every dist of the checkout, in an order in which each needs only those before it."""
    rest = sorted(path.parent for path in root.glob("plugins_*/pyproject.toml"))
    return [Dist(root / "plugins"), Dist(root / "core"), *map(Dist, rest), Dist(root / "testing")]


def problems_of(dists: Sequence[Dist]) -> list[str]:
    """What does not agree: versions, the versions that dists ask of each other, the extras, the marks of types."""
    (core,) = [dist for dist in dists if dist.name == "litz"]
    found = [f"{d.name} is of version {d.version}, litz of {core.version}" for d in dists if d.version != core.version]
    for dist in dists:
        extras = dist.project.get("optional-dependencies", {})
        for needed in [*dist.project["dependencies"], *(one for extra in extras.values() for one in extra)]:
            pin = _PIN.match(needed)
            if pin is not None and pin[2] != f"=={core.version}":
                found.append(f"{dist.name} needs {needed}, which is not of version {core.version}")
        if not (dist.package / "py.typed").is_file():
            found.append(f"{dist.name} has no py.typed")
        written = re.search(r'^__version__ = "(.*)"', (dist.package / "__init__.py").read_text(), re.MULTILINE)
        if written is not None and written[1] != core.version:
            found.append(f"{dist.name}.__version__ is {written[1]}")
    extras = core.project["optional-dependencies"]
    for dist in dists:
        if "litz" in dist.project.get("entry-points", {}):
            pin_text, short = f"{dist.name}=={core.version}", dist.name.removeprefix("litz-")
            found += [
                f"litz[{extra}] lacks {pin_text}" for extra in ("all", short) if pin_text not in extras.get(extra, ())
            ]
    return found
