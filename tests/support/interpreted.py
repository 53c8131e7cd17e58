"""Cases that run in Triton's interpreter, in a process of their own: Triton reads TRITON_INTERPRET when imported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.warm import run_warm

ROOT = Path(__file__).parents[2]


def interpreted(module: str, names: Sequence[str] | None = None) -> Mapping[str, str]:
    """For each case of a module "" or what went wrong. `python -m module SHARD OF` prints its share of that as JSON.
    names: of the only cases to run, which follow SHARD OF."""
    paths = [str(ROOT / "tests"), str(ROOT / "core/src"), str(ROOT / "plugins/src"), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = run_warm(["-m", module, "0", "1", *(names or ())], environ, timeout=600, imported=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def asked_for(request: pytest.FixtureRequest, module: str) -> list[str]:
    """The cases, by the parameter `name`, for which this run's tests of a module want the fixture that asks."""
    wanted = (item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ()))
    own = (item for item in wanted if item.module.__name__ == module)
    return list(dict.fromkeys(item.callspec.params["name"] for item in own))


def mostly(names: Collection[str], thorough: Collection[str]) -> list[Any]:
    """The names as parameters of a test, some of them for `make test-all`."""
    assert set(thorough) <= set(names)
    return [pytest.param(name, marks=pytest.mark.thorough) if name in thorough else name for name in names]


class Checked(Protocol):
    """A case."""

    def check(self) -> str:
        """ "" or what went wrong."""


def print_share(cases: Mapping[str, Checked]) -> None:
    """`python -m module SHARD OF [NAME ...]`: each OF-th case from the SHARD-th on, of all or of these, checked."""
    shard, shards = map(int, sys.argv[1:3])
    found = {}
    for name in (sys.argv[3:] or list(cases))[shard::shards]:
        try:
            found[name] = cases[name].check()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
