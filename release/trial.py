"""The wheels of dist/ as a user gets them: a fresh environment, no checkout. Out: what worked, with seconds.

Runs README's example, `litz doctor`, `litz plugins`, a compile that writes a report, and the demo. Needs the package
registry for torch and the other dists that litz needs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .dists import ROOT, all_dists


@dataclass(frozen=True)
class Trial:
    """A command of the fresh environment. says: what its output has to have."""

    name: str
    command: tuple[str, ...]
    says: str = ""


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.trial", description=__doc__.partition("\n")[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which takes minutes")
    options = parser.parse_args(given)
    wheels = sorted(options.dist.resolve().glob("*.whl"))
    if len(wheels) != len(all_dists()):
        print(f"{options.dist} has {len(wheels)} wheels: `python -m release.build` first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="litz-trial-") as folder:
        home = Path(folder)
        began = time.monotonic()
        venv.create(home / "env", with_pip=True)
        install(home, wheels)
        print(f"installed in {time.monotonic() - began:.0f} s")
        script = home / "example.py"
        script.write_text(readme_example(), encoding="utf-8")
        failed = [trial.name for trial in trials(home, script, not options.no_demo) if not _passes(trial, home)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def readme_example(readme: str | None = None) -> str:
    """The first block of Python in README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8") if readme is None else readme
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if block is None:
        raise ValueError("README.md has no example in Python")
    return block[1]


def install(home: Path, wheels: Sequence[Path]) -> None:
    """All wheels with `litz[all,demo]`, the tested versions of what they need."""
    (core,) = [wheel for wheel in wheels if wheel.name.startswith("litz-")]
    others = [str(wheel) for wheel in wheels if wheel != core]
    pip = [str(home / "env/bin/python"), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    # torch first: it decides which build, CPU or CUDA, all others have to agree with.
    subprocess.run([*pip, torch], check=True, cwd=home, env=_environment(home))
    subprocess.run([*pip, f"litz[all,demo] @ {core.as_uri()}", *others], check=True, cwd=home, env=_environment(home))


def trials(home: Path, script: Path, demo: bool) -> list[Trial]:
    python, litz = str(home / "env/bin/python"), str(home / "env/bin/litz")
    where = "import litz, litz_layout; print(litz.__file__, litz_layout.__file__)"
    found = [
        Trial("litz comes from the wheel", (python, "-c", where), str(home / "env")),
        Trial("README's example", (python, str(script)), "torch.Size([8, 64])"),
        Trial("litz doctor", (litz, "doctor"), "litz can work here"),
        Trial("litz plugins", (litz, "plugins"), "litz-collectives"),
        Trial("litz explain", (litz, "explain", str(script)), "kernel"),
        Trial("a report", (python, "-c", _REPORT.format(script=str(script))), "report.html with page.js"),
    ]
    return [*found, Trial("the demo", (python, "-m", "litz_tools.demo"), "ResNet-50")] if demo else found


_REPORT = """
import os, pathlib, runpy
os.environ["LITZ_REPORT_DIR"] = "reports"
runpy.run_path({script!r})
(page,) = pathlib.Path("reports").glob("*/report.html")
assert "IntersectionObserver" in page.read_text() and pathlib.Path("reports/index.html").is_file()
print("report.html with page.js")
"""


def _passes(trial: Trial, home: Path) -> bool:
    began = time.monotonic()
    done = subprocess.run(trial.command, cwd=home, env=_environment(home), capture_output=True, text=True, check=False)
    right = done.returncode == 0 and trial.says in done.stdout
    print(f"{'ok  ' if right else 'FAIL'} {trial.name}, {time.monotonic() - began:.1f} s", flush=True)
    if not right:
        print(f"{done.stdout}\n{done.stderr}\nexit status {done.returncode}; {trial.says!r} was expected")
    return right


def _environment(home: Path) -> dict[str, str]:
    """Without anything that leads to the checkout or to another's cache."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LITZ_", "VIRTUAL_ENV"))
    }
    return kept | {"LITZ_CACHE_DIR": str(home / "cache"), "PATH": f"{home / 'env/bin'}:{os.environ['PATH']}"}


if __name__ == "__main__":
    sys.exit(main())
