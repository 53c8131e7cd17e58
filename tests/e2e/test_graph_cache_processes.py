"""The graph cache between processes: a new one finds what another has compiled, and nothing that has changed since."""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from support.third_party import run_python, run_python_together, write_dist

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, torch
from litz.report import collect

def f(x, w):
    return (x @ w).relu().sum(0)

if "--version" in sys.argv:
    from litz.graph_cache import fingerprints
    fingerprints.version_of = lambda dist: sys.argv[-1]

torch.manual_seed(0)
x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
with collect() as reports:
    out = torch.compile(f, backend="litz")(x, w)
    out.square().sum().backward()
torch.testing.assert_close(out, f(x, w))
print(*(report.graph_cache.split()[0] for report in reports), w.grad.sum().item().hex())
"""

PLUGIN = """
    from litz_plugins import Pass, hookimpl

    @hookimpl
    def litz_register_passes(options):
        return [Pass("own", "program", lambda program, context: program)]
"""


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def run(cache: Path, *more: str, path: tuple[Path, ...] = (), warm: bool = True) -> list[str]:
    return said(run_python("-c", SCRIPT, *more, path=path, warm=warm, imported=True, LITZ_CACHE_DIR=str(cache)))


@pytest.mark.nightly
def test_another_process_finds_what_one_has_compiled(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path, warm=False)
    assert first[:2] == ["miss", "miss"] and second[:2] == ["hit", "hit"]
    assert first[2] == second[2]


def test_a_plugin_whose_source_is_edited_misses(tmp_path: Path) -> None:
    site, cache = tmp_path / "site", tmp_path / "cache"
    write_dist(site, "litz-own", {"own": "litz_own"}, {"litz_own": PLUGIN})
    assert run(cache)[:2] == ["miss", "miss"]
    assert run(cache, path=(site,))[:2] == ["miss", "miss"], "a plugin more"
    assert run(cache, path=(site,))[:2] == ["hit", "hit"]
    source = site / "litz_own.py"
    source.write_text(source.read_text() + "\n# edited\n")
    assert run(cache, path=(site,))[:2] == ["miss", "miss"]
    (info,) = site.glob("*.dist-info")
    (info / "METADATA").write_text((info / "METADATA").read_text().replace("Version: 1.0", "Version: 1.1"))
    assert run(cache, path=(site,))[:2] == ["miss", "miss"], "another version"
    assert run(cache)[:2] == ["hit", "hit"]


def test_a_module_beside_a_plugins_own_counts(tmp_path: Path) -> None:
    site, cache = tmp_path / "site", tmp_path / "cache"
    write_dist(site, "litz-own", {"own": "litz_own"}, {})
    package = site / "litz_own"
    package.mkdir()
    (package / "__init__.py").write_text("from .rules import *\n")
    (package / "rules.py").write_text("\n".join(line[4:] for line in PLUGIN.splitlines()))
    (package / "table.json").write_text("{}")
    run(cache, path=(site,))
    assert run(cache, path=(site,))[:2] == ["hit", "hit"]
    (package / "table.json").write_text('{"a": 1}')
    assert run(cache, path=(site,))[:2] == ["miss", "miss"]


def test_processes_at_a_time_and_of_several_versions_share_a_folder(tmp_path: Path) -> None:
    versions = ("1", "1", "2")
    asked = [("-c", SCRIPT, "--version", version) for version in versions]
    found = [said(done) for done in run_python_together(*asked, LITZ_CACHE_DIR=str(tmp_path))]
    assert len({one[-1] for one in found}) == 1
    for version in ("1", "2"):
        assert run(tmp_path, "--version", version)[:2] == ["hit", "hit"]
    assert run(tmp_path, "--version", "3")[:2] == ["miss", "miss"]


@pytest.mark.ci_cases("LITZ_CACHE")
@pytest.mark.parametrize("name", ["LITZ_GRAPH_CACHE", "LITZ_CACHE"])
def test_off_is_off(tmp_path: Path, name: str) -> None:
    run(tmp_path)
    done = run_python("-c", SCRIPT, imported=True, LITZ_CACHE_DIR=str(tmp_path), **{name: "0"})
    assert set(said(done)[:2]) <= {"off", "miss"}


SAVE = """
import torch, pathlib, sys
pathlib.Path(sys.argv[-1]).write_bytes(torch.compiler.save_cache_artifacts()[0])
"""
LOAD = """
import litz, pathlib, sys
info = litz.load_cache_artifacts(pathlib.Path(sys.argv[-1]).read_bytes())
assert any(name.startswith("graph/") for name in info.artifacts["litz"]), info
"""


FRESH = """
import pathlib, sys, torch
info = torch.compiler.load_cache_artifacts(pathlib.Path(sys.argv[-1]).read_bytes())
assert any(name.startswith("graph/") for name in info.artifacts["litz"]), info
assert info.aot_autograd_artifacts, info
assert not {"litz.pipeline", "litz.options", "torch._dynamo.backends.registry"} & set(before), before
from torch._dynamo.utils import counters
"""


def environ(folder: Path) -> dict[str, str]:
    """Caches in a folder, AOTAutograd's too."""
    return {"LITZ_CACHE_DIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What a process that compiled has saved, and what it said."""
    folder = tmp_path_factory.mktemp("saved")
    data = folder / "artifacts"
    return data, said(run_python("-c", SCRIPT + SAVE, str(data), imported=True, **environ(folder / "cache")))


def test_torchs_own_function_loads_them_in_a_fresh_process(tmp_path: Path, artifacts: tuple[Path, list[str]]) -> None:
    """`import torch` is all that the process has done: litz's metadata has torch ask for the kind of artifacts. The
    caches there, AOTAutograd's too, are empty, and the first call finds everything in them."""
    (data, saved), site, second = artifacts, tmp_path / "site", tmp_path / "second"
    project = tomllib.loads((ROOT / "core/pyproject.toml").read_text())["project"]
    write_dist(site, "litz-autoload", {}, {})
    points = "".join(f"{name} = {place}\n" for name, place in project["entry-points"]["torch.backends"].items())
    (site / "litz_autoload-1.0.dist-info" / "entry_points.txt").write_text(f"[torch.backends]\n{points}")
    before = "import sys, torch; before = sorted(sys.modules)\n"
    after = "assert dict(counters['aot_autograd'])['autograd_cache_hit'] == 1, counters['aot_autograd']\n"
    done = run_python("-c", before + FRESH + SCRIPT + after, str(data), path=(site,), warm=False, **environ(second))
    loaded = said(done)
    assert saved[:2] == ["miss", "miss"] and loaded[:2] == ["hit", "hit"] and loaded[2] == saved[2]


@pytest.mark.parametrize("packed", [False, True])
def test_without_metadata_litz_registers_itself(tmp_path: Path, packed: bool) -> None:
    """From a folder, or a zip, that is on the path and that no metadata names; twice, and the type of artifacts too."""
    source = tmp_path / ("litz.zip" if packed else "litz")
    if packed:
        with zipfile.ZipFile(source, "w") as archive:
            for dist in ("core", "plugins"):
                for file in (ROOT / dist / "src").rglob("*"):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, file.relative_to(ROOT / dist / "src"))
                    compiled = Path(cache_from_source(file)) if file.suffix == ".py" else None
                    if compiled is not None and compiled.is_file():  # Python compiles the others at each import
                        archive.write(compiled, file.with_suffix(".pyc").relative_to(ROOT / dist / "src"))
    else:
        source.mkdir()
        for dist, name in (("core", "litz"), ("plugins", "litz_plugins")):
            (source / name).symlink_to(ROOT / dist / "src" / name)
    script = f"""
import sys, importlib.metadata
sys.path[:] = [{str(source)!r}, *(p for p in sys.path if "/src" not in p)]
real = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **known: type(real())(
    point for point in real(**known) if not point.value.startswith("litz")
)
import litz, torch
assert litz.__file__.startswith({str(source)!r}), litz.__file__
try:
    torch.compile(torch.sin, backend="litz")(torch.ones(2))
except Exception as error:
    assert type(error).__name__ == "InvalidBackend", error
else:
    raise AssertionError("found")
litz.register()
litz.register()
assert "litz" in torch._dynamo.list_backends()
torch._dynamo.reset()
x = torch.randn(4, 16)
f = lambda x: torch.softmax(x * 2, -1)
torch.testing.assert_close(torch.compile(f, backend="litz")(x), f(x))
assert torch.compiler.load_cache_artifacts(torch.compiler.save_cache_artifacts()[0]).artifacts["litz"]
"""
    done = run_python("-c", script, LITZ_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("damaged", [False, True])
def test_torchs_artifacts_carry_litzs(tmp_path: Path, artifacts: tuple[Path, list[str]], damaged: bool) -> None:
    (data, saved), second = artifacts, tmp_path / "second"
    if damaged:
        content, data = data.read_bytes(), tmp_path / "damaged"
        at = content.index(b'"zlib": "') + 40
        data.write_bytes(content[:at] + b"????" + content[at + 4 :])
    done = run_python("-c", LOAD + SCRIPT, str(data), imported=True, LITZ_CACHE_DIR=str(second))
    if damaged:  # torch's own sum says so, and nothing is loaded
        assert done.returncode != 0 and not (second / "graph").exists()
        return
    loaded = said(done)
    assert saved[:2] == ["miss", "miss"] and loaded[:2] == ["hit", "hit"] and loaded[2] == saved[2]
