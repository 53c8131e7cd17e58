"""`litz bisect` on real runs: a plugin that does harm on purpose, and scripts that cannot be bisected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.bad_plugin import MODULE, SCRIPT
from support.third_party import run_python, write_dist


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bad plugin, as an installer would leave it, and the script."""
    folder = tmp_path_factory.mktemp("site")
    write_dist(folder, "litz-bad", {"bad": "bad_plugin_module"}, {"bad_plugin_module": MODULE})
    (folder / "script.py").write_text(SCRIPT)
    return folder


def bisect(site: Path, *arguments: str, script: str = "script.py", **environ: str) -> tuple[int, str, str]:
    """(exit status, what it printed, what it complained about)."""
    own = [item for item in arguments if item.startswith("-") or "=" in item or item in ("eager", "inductor")]
    rest = [item for item in arguments if item not in own]
    done = run_python(
        "-m", "litz", "bisect", *own, str(site / script), *rest, path=(site,), children=True, imported=True, **environ
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.xdist_group("bisect")
def test_a_pass_that_makes_it_slow(site: Path, tmp_path: Path) -> None:
    """Against the same without harm: the decisions that both sides take are not looked at."""
    cache = str(tmp_path / "cache")
    code, text, errors = bisect(site, "--against", "bad.harm=", "--json", "slow", "30", LITZ_CACHE_DIR=cache)
    assert code == 0, errors
    found = json.loads(text)
    assert [each["key"] for each in found["found"]] == ["graph0_inference:harm/exp_2"], found
    assert found["found"][0]["plugin"] == "bad" and found["confirmed"]
    assert min(found["with_it"]) > 5 * min(found["without_it"])


@pytest.mark.slow
@pytest.mark.xdist_group("bisect")
def test_a_pass_that_makes_it_wrong(site: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    code, text, errors = bisect(site, "--wrong", "--against", "eager", "--json", "wrong", "2", LITZ_CACHE_DIR=cache)
    assert code == 0, errors
    found = json.loads(text)
    assert [each["key"] for each in found["found"]] == ["graph0_inference:harm/exp_2"], found
    worst = found["litz"]["differences"][0]
    assert worst["site"] == "f" and worst["output"] == 2 and 0.1 < worst["difference"] < 0.3


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("import torch", ["calls nothing that it compiled with litz"], marks=pytest.mark.thorough),
        pytest.param(
            "import torch\ntorch.compile(lambda x: x + 1, backend='litz')(torch.ones(3))",
            ["too few calls", "--repeat 20"],
            marks=pytest.mark.thorough,
        ),
        ("import torch\nprint('so far')\nraise KeyError('mine')", ["does not run with litz: KeyError", "so far"]),
        pytest.param(
            "import sys; sys.exit(3)",
            ["does not run with litz: it ended with status 3", "it wrote nothing"],
            marks=pytest.mark.thorough,
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ["its process was ended by SIGSEGV"]),
    ],
    ids=["nothing compiled", "too few calls", "raises", "exits", "crashes"],
)
def test_a_script_that_cannot_be_measured(site: Path, text: str, parts: list[str]) -> None:
    (site / "own.py").write_text(text)
    code, _, errors = bisect(site, "--against", "eager", script="own.py", LITZ_DISABLE_PLUGINS="bad")
    assert code == 1 and all(part in errors for part in parts), errors


def test_a_script_that_hangs(site: Path) -> None:
    (site / "hang.py").write_text("import time\nprint('waiting', flush=True)\ntime.sleep(1000)")
    code, _, errors = bisect(site, "--against=eager", "--timeout=4", script="hang.py", LITZ_DISABLE_PLUGINS="bad")
    assert code == 1 and "it ran for more than 4 s" in errors and "waiting" in errors
