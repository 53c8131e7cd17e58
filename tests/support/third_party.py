"""Third-party dists for tests: built and installed by pip, or written as an installer would leave them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from support.warm import run_together, run_warm
from support.warm_children import warm_python


def pip_install(project: Path, target: Path) -> None:
    """Build a project and install it into a folder, with nothing but what is here: no network, no isolation."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-build-isolation", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(target), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def write_dist(
    site: Path,
    dist: str,
    entry_points: dict[str, str],
    modules: dict[str, str],
    version: str = "1.0",
    requires: Sequence[str] = (),
) -> None:
    """An installed dist in the folder ``site``: its modules, and the dist-info that importlib.metadata reads.

    entry_points: plugin name -> module, of group litz. modules: module name -> source. requires: other dists.
    """
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needed = "".join(f"Requires-Dist: {other}\n" for other in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{needed}")
    lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[litz]\n{lines}")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(textwrap.dedent(source))


def run_python(
    *arguments: str,
    path: tuple[Path, ...] = (),
    warm: bool = True,
    children: bool = False,
    imported: bool = False,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """An interpreter with folders of dists in front of its path, and no LITZ_ setting but those given.

    warm: torch may be imported in it already, which saves seconds. imported: litz is, too (`run_warm`). The C++
    compiler is not tested: each interpreter has a cache of its own, and would test the compiler again. children: are
    the interpreters that this one starts warm, too?
    """
    env = _environment(path, environ) | ({"WARM_PYTHON": warm_python(imported)} if children else {})
    if warm:
        return run_warm(arguments, env, imported=imported)
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=300)


def run_python_together(*several: Sequence[str], **environ: str) -> list[subprocess.CompletedProcess[str]]:
    """As `run_python`, for several interpreters at a time, by the arguments of each."""
    return run_together(several, _environment((), environ), imported=True)


def _environment(path: tuple[Path, ...], environ: dict[str, str]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LITZ_")} | {"LITZ_CPP_QUALIFY": "0"} | environ
    env["PYTHONPATH"] = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return env
