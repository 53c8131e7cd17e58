"""The disk cache under damage: what is not as it was written is not used, what cannot be used costs one warning."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from filelock import FileLock

from litz.cache import disk as cache_module
from litz.cache.disk import Cache, digest
from litz.cache.manifest import FILE, LARGEST
from litz.cli.main import main
from litz.errors import CacheError
from litz.options import Options
from litz.targets.cpp import build as cpp_build

KEY, NEEDS = digest("entry"), ("kernel.so", "part/data.bin")
CONTENT = {"kernel.so": b"code" * 100, "part/data.bin": b"data", "kernel.cpp": b"text"}


def fill(folder: Path) -> None:
    for name, data in CONTENT.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def entry_of(root: Path) -> Path:
    return Cache(root).build("cpp", KEY, fill, NEEDS)


def manifest(folder: Path, text: str | bytes) -> None:
    (folder / FILE).write_bytes(text.encode() if isinstance(text, str) else text)


def resummed(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    sums = json.loads((folder / FILE).read_text())
    manifest(folder, json.dumps(change(sums)))


def outside(folder: Path, name: str) -> None:
    path = folder.parents[2] / "elsewhere"
    path.write_bytes(CONTENT["kernel.so"])
    resummed(folder, lambda sums: {**sums, name.format(path): sums["kernel.so"]})


def linked(folder: Path, name: str) -> None:
    path = folder.parents[2] / "moved"
    shutil.move(folder / name, path)
    (folder / name).symlink_to(path)


def as_link(folder: Path) -> None:
    shutil.move(folder, folder.parents[2] / "moved")
    folder.symlink_to(folder.parents[2] / "moved")


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


def as_pipe(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def truncated(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:10])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "an empty manifest": lambda f: manifest(f, "{}"),
    "an empty manifest of a truncated library": lambda f: (manifest(f, "{}"), truncated(f, "kernel.so")),
    "no manifest": lambda f: (f / FILE).unlink(),
    "a manifest of no bytes": lambda f: manifest(f, b""),
    "a truncated manifest": lambda f: truncated(f, FILE),
    "a manifest of zeros": lambda f: manifest(f, b"\0" * 200),
    "a manifest in another encoding": lambda f: manifest(f, b"\xff\xfe{}"),
    "a nested manifest": lambda f: manifest(f, "[" * 100_000),
    "a nested object": lambda f: manifest(f, '{"kernel.so":' * 50_000),
    "a list": lambda f: manifest(f, "[]"),
    "a number of many digits": lambda f: manifest(f, "1" * 100_000),
    "nothing": lambda f: manifest(f, "null"),
    "a huge manifest": lambda f: manifest(f, json.dumps({"x": "y" * LARGEST})),
    "a manifest without the library": lambda f: resummed(f, lambda s: {"kernel.cpp": s["kernel.cpp"]}),
    "a sum that is a number": lambda f: resummed(f, lambda s: {**s, "kernel.so": 7}),
    "a sum that is a list": lambda f: resummed(f, lambda s: {**s, "kernel.so": [s["kernel.so"]]}),
    "another sum": lambda f: resummed(f, lambda s: {**s, "kernel.so": s["kernel.cpp"]}),
    "a name twice": lambda f: manifest(f, (f / FILE).read_text().replace("{", '{"kernel.so": "' + "0" * 64 + '",')),
    "a name that leads outside": lambda f: outside(f, "../../../elsewhere"),
    "an absolute name": lambda f: outside(f, "{}"),
    "a name with a zero": lambda f: outside(f, "a\0b"),
    "the manifest itself": lambda f: resummed(f, lambda s: {**s, FILE: "0" * 64}),
    "a manifest that is a folder": lambda f: ((f / FILE).unlink(), (f / FILE).mkdir()),
    "a manifest that is a link": lambda f: linked(f, FILE),
    "a manifest that is a pipe": lambda f: as_pipe(f, FILE),
    "a library that is a link": lambda f: linked(f, "kernel.so"),
    "a library that is a pipe": lambda f: as_pipe(f, "kernel.so"),
    "a library that is a folder": lambda f: ((f / "kernel.so").unlink(), (f / "kernel.so").mkdir()),
    "a folder that is a link": lambda f: linked(f, "part"),
    "a truncated library": lambda f: truncated(f, "kernel.so"),
    "a library of no bytes": lambda f: (f / "kernel.so").write_bytes(b""),
    "a library with a changed bit": lambda f: (f / "kernel.so").write_bytes(b"codf" + CONTENT["kernel.so"][4:]),
    "a missing library": lambda f: (f / "kernel.so").unlink(),
    "an entry that is a link": as_link,
    "an entry that is a link to nowhere": lambda f: (shutil.rmtree(f), f.symlink_to("nowhere")),
    "an entry that is a file": as_file,
    "an empty entry": lambda f: (shutil.rmtree(f), f.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_built_anew(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "cache"
    DAMAGE[damage](entry_of(root))
    assert Cache(root).find("cpp", KEY, NEEDS) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = entry_of(root)
    assert folder == root / "cpp" / KEY
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert Cache(root).find("cpp", KEY, NEEDS) == folder
    assert Cache(root).clear() == 1 and not list((root / "cpp").glob(f"*{KEY}*"))


def test_files_beside_those_of_the_manifest_change_nothing(tmp_path: Path) -> None:
    folder = entry_of(tmp_path)
    (folder / ".nfs0001").write_bytes(b"somebody's")
    assert Cache(tmp_path).find("cpp", KEY, NEEDS) == folder
    assert Cache(tmp_path).find("cpp", KEY, (".nfs0001",)) is None, "nobody vouches for that one"


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number), str(args[0]) if args else str(kwargs.get("dir", "")))

    module, _, attribute = name.rpartition(".")
    monkeypatch.setattr({"os": os, "Path": Path, "tempfile": cache_module.tempfile}[module], attribute, fail)


def no_folder_at_root(root: Path, patch: pytest.MonkeyPatch) -> None:
    root.write_text("")


def no_folder_on_the_way(root: Path, patch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    (root / "cpp").write_text("")


def no_entry(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A folder in the entry's place that nobody can remove."""
    (root / "cpp" / KEY / "busy").mkdir(parents=True)
    patch.setattr(cache_module, "_remove", lambda path: None)


UNUSABLE: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "a file in its place": no_folder_at_root,
    "a file in a folder's place": no_folder_on_the_way,
    "an entry that stays": no_entry,
    "read-only": lambda root, patch: refuse(patch, "Path.mkdir", errno.EROFS),
    "no permission": lambda root, patch: refuse(patch, "Path.mkdir", errno.EACCES),
    "no room": lambda root, patch: refuse(patch, "Path.write_bytes", errno.ENOSPC),
    "no quota": lambda root, patch: refuse(patch, "Path.write_bytes", errno.EDQUOT),
    "stale": lambda root, patch: refuse(patch, "os.rename", errno.ESTALE),
    "broken": lambda root, patch: refuse(patch, "os.rename", errno.EIO),
}


@pytest.mark.parametrize("why", UNUSABLE)
def test_a_cache_that_cannot_be_used_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    root = tmp_path / "cache"
    cache = Cache(root)
    with monkeypatch.context() as patch:
        real = {name: getattr(Path, name) for name in ("mkdir", "write_bytes")}
        rename = os.rename
        UNUSABLE[why](root, patch)
        broken = {name: getattr(Path, name) for name in real}
        for name, function in broken.items():  # only the cache is broken, not the folder for temporary files
            patch.setattr(Path, name, _only_in(root, function, real[name]))
        patch.setattr(os, "rename", _only_in(root, os.rename, rename))
        with pytest.warns(UserWarning, match="goes on without its disk cache.*LITZ_CACHE_DIR") as caught:
            folders = [cache.build("cpp", KEY, fill, NEEDS) for _ in range(2)]
            folders += [cache.counted().build("cpp", digest(str(n)), fill, NEEDS) for n in range(2)]
    assert len(caught) == 1 and str(root) in str(caught[0].message)
    assert folders[0] == folders[1] and all(root not in folder.parents for folder in folders)
    assert (folders[0] / "kernel.so").read_bytes() == CONTENT["kernel.so"]
    assert (cache.misses, cache.hits) == (1, 1)


def _only_in(root: Path, broken: Callable[..., object], real: Callable[..., object]) -> Callable[..., object]:
    return lambda path, *args, **kwargs: (broken if str(path).startswith(str(root)) else real)(path, *args, **kwargs)


def test_what_make_raises_is_no_fault_of_the_cache(tmp_path: Path) -> None:
    def missing(folder: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", "/nowhere/at/all")

    with warnings.catch_warnings(), pytest.raises(FileNotFoundError):
        warnings.simplefilter("error")
        Cache(tmp_path / "cache").build("cpp", KEY, missing)
    assert Cache(tmp_path / "cache").find("cpp", KEY) is None


def test_neither_cache_nor_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    refuse(monkeypatch, "tempfile.mkdtemp", errno.ENOSPC)
    with pytest.raises(CacheError, match="TMPDIR"):
        Cache(tmp_path / "file").build("cpp", KEY, fill)


def test_an_entry_that_vanishes_is_built_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for vanish in (lambda f: shutil.rmtree(f), lambda f: (f / "kernel.so").unlink(), lambda f: Cache(tmp_path).clear()):
        vanish(cache.build("cpp", KEY, fill, NEEDS))
        assert (cache.build("cpp", KEY, fill, NEEDS) / "kernel.so").is_file()


@pytest.mark.parametrize("lock", ["held", "a folder"])
def test_a_lock_that_cannot_be_had_does_not_stop_a_build(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "cpp" / f".{KEY}.lock"
    path.parent.mkdir()
    held = FileLock(path)
    if lock == "held":
        held.acquire()
    else:
        path.mkdir()
    started = time.monotonic()
    folder = Cache(tmp_path).build("cpp", KEY, fill, NEEDS, patience=0.1)
    assert time.monotonic() - started < 5 and folder == tmp_path / "cpp" / KEY
    held.release()


def test_who_comes_second_uses_what_is_there(tmp_path: Path) -> None:
    """Two builders without a lock between them: the entry that is there first stays, and both have it."""

    def slow(folder: Path) -> None:
        fill(folder)
        entry_of_other()

    def entry_of_other() -> None:
        threading.Thread(target=lambda: Cache(tmp_path).build("cpp", KEY, fill, NEEDS, patience=0)).run()

    folder = Cache(tmp_path).build("cpp", KEY, slow, NEEDS)
    assert Cache(tmp_path).find("cpp", KEY, NEEDS) == folder
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [KEY]


def test_a_process_that_is_killed_while_it_writes_leaves_no_entry(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from litz.cache.disk import Cache\n"
        f"Cache(pathlib.Path({str(tmp_path)!r})).build('cpp', {KEY!r}, lambda f: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert Cache(tmp_path).find("cpp", KEY) is None
    entry_of(tmp_path)
    (tmp_path / "cpp" / f".{KEY[:8]}-0a1b2c3d").mkdir()  # what one that was killed in the middle of a copy leaves
    assert Cache(tmp_path).clear() == 1
    assert not [path for path in (tmp_path / "cpp").iterdir() if path.is_dir()]


def test_the_command_line_on_a_cache_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "cache" / "cpp" / KEY).mkdir(parents=True)
    (tmp_path / "cache" / "stray").write_text("")
    for command in (["info"], ["clear", "--yes"]):
        found = CliRunner().invoke(main, ["cache", *command, "--dir", str(tmp_path / "file")])
        assert found.exit_code == 1 and "the cache cannot be read" in found.output
        found = CliRunner().invoke(main, ["cache", *command, "--dir", str(tmp_path / "cache")])
        assert found.exit_code == 0
    assert (tmp_path / "cache" / "stray").exists() and not (tmp_path / "cache" / "cpp" / KEY).exists()


class Source:
    """A kernel that returns 3."""

    name = symbol = "three"
    arguments: tuple[str, ...] = ()
    settings: dict[str, object] = {}

    def __init__(self, number: int = 0) -> None:
        self.text = f'extern "C" int three() {{ return 3; }} // {number}'


def load_three(cache: Cache, number: int = 0) -> int:
    context: Any = SimpleNamespace(options=Options(), cache=cache)
    result: int = cpp_build.load_kernel(Source(number), context)()
    return result


def test_a_library_is_unloaded_once_its_function_is_gone(tmp_path: Path) -> None:
    context: Any = SimpleNamespace(options=Options(), cache=Cache(tmp_path / "cache"))

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    launch = cpp_build.load_kernel(Source(), context)
    again = cpp_build.load_kernel(Source(), context)
    del launch
    gc.collect()
    assert is_mapped() and again() == 3
    del again
    gc.collect()
    assert not is_mapped()


def test_a_library_whose_file_was_shortened_stays_loaded(tmp_path: Path) -> None:
    """Its destructors would run in pages that are gone, which ends the process."""
    context: Any = SimpleNamespace(options=Options(), cache=Cache(tmp_path / "cache"))
    launch = cpp_build.load_kernel(Source(), context)
    assert launch() == 3
    (library,) = (tmp_path / "cache").rglob("*.so")
    library.write_bytes(library.read_bytes()[:100])
    del launch
    gc.collect()
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of memory, with options."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    done: list[bool] = []

    def mount(options: str) -> Path:
        line = ["mount", *(() if done else ("-t", "tmpfs")), "-o", options, *(() if done else ("tmpfs",)), str(folder)]
        found = subprocess.run(line, capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip(f"nothing can be mounted here: {found.stderr.strip()}")
        done.append(True)
        return folder

    try:
        yield mount
    finally:
        if done:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_cache_on_a_mount_that_no_code_runs_from(mounted: Callable[[str], Path]) -> None:
    root = mounted("noexec,size=4m") / "cache"
    with pytest.warns(UserWarning, match="goes on without its disk cache") as caught:
        assert [load_three(Cache(root)) for _ in range(2)] == [3, 3]
        assert load_three(Cache(root), 1) == 3
    assert len(caught) == 1, "once a process, not once a cache object"
    assert len(list((root / "cpp").glob("*/kernel.so"))) == 2, "it is kept all the same, for who mounts it otherwise"


def test_a_shared_cache_on_a_mount_that_no_code_runs_from(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    team = mounted("size=4m")
    cpp_build.build(Source(), Options(), Cache(team))
    mounted("remount,noexec")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = Cache(tmp_path / "own", shared=[team])
        assert load_three(own) == 3 and (own.misses, own.hits) == (1, 1)
        assert load_three(Cache(tmp_path / "own", shared=[team])) == 3
    assert len(list((tmp_path / "own" / "cpp").glob("*/kernel.so"))) == 1


def test_neither_the_cache_nor_the_temporary_folder_runs_code(
    mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = mounted("noexec,size=4m")
    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(root))
    with pytest.raises(CacheError, match=r"of no use.*failed to map segment") as caught, pytest.warns(UserWarning):
        load_three(Cache(root / "cache"))
    assert "set TMPDIR to a folder that code may run from" in str(caught.value)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_cache_on_a_mount_that_takes_nothing(mounted: Callable[[str], Path], fault: str) -> None:
    root = mounted("size=64k" if fault == "full" else "size=4m") / "cache"
    root.mkdir()
    if fault == "full":
        with pytest.raises(OSError, match="No space"):
            (root / "filler").write_bytes(bytes(1 << 20))
    else:
        mounted("remount,ro")
    with pytest.warns(UserWarning, match="No space left|Read-only file system") as caught:
        assert [load_three(Cache(root), number) for number in (0, 1, 0)] == [3, 3, 3]
    assert len(caught) == 1
    assert not [path for path in root.glob("cpp/*") if path.is_dir()], "nothing half is left"


def test_a_full_temporary_folder_is_named(mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = mounted("size=64k")
    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(root))

    def make(folder: Path) -> None:
        (folder / "kernel.so").write_bytes(bytes(1 << 20))

    with pytest.raises(CacheError, match="No space left") as caught:
        Cache(root.parent / "cache").build("cpp", KEY, make)
    assert "TMPDIR" in str(caught.value) and not list(root.iterdir())


@pytest.mark.parametrize("way", ["clear", "remove"])
def test_a_cache_that_is_emptied_while_an_entry_is_made(tmp_path: Path, way: str) -> None:
    root = tmp_path / "cache"

    def empty() -> None:
        Cache(root).clear() if way == "clear" else shutil.rmtree(root)

    def make(folder: Path) -> None:
        fill(folder)
        empty()

    def read(folder: Path) -> bytes:
        if not removed:
            removed.append(True)
            empty()  # another process, after the entry was found and before it is read
        return (folder / "kernel.so").read_bytes()

    removed: list[bool] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(root).build("cpp", KEY, make, NEEDS) == root / "cpp" / KEY
        assert Cache(root).use("cpp", KEY, fill, read, NEEDS) == CONTENT["kernel.so"]
    assert Cache(root).find("cpp", KEY, NEEDS) == root / "cpp" / KEY


def test_a_cache_that_is_emptied_all_the_time(tmp_path: Path) -> None:
    """Threads in the parts of other processes: writers and readers go on, whatever the two that empty it do."""
    root, ends, done = tmp_path / "cache", threading.Event(), []

    def empty(way: Callable[[], object]) -> None:
        while not ends.wait(0.0005):
            with contextlib.suppress(CacheError, OSError):
                way()

    def write(number: int) -> None:
        for turn in range(60):
            text = f"{number} {turn % 7}".encode()
            found = Cache(root).use(
                "cpp",
                digest(text),
                lambda f, t=text: (f / "k").write_bytes(t),
                lambda f: (f / "k").read_bytes(),
                ("k",),
            )
            assert found == text
        done.append(number)

    ways = (lambda: Cache(root).clear(), lambda: shutil.rmtree(root, ignore_errors=True))
    emptying = [threading.Thread(target=empty, args=(way,)) for way in ways]
    writing = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cache that is emptied at each turn is one that cannot be used
        for thread in (*emptying, *writing):
            thread.start()
        for thread in writing:
            thread.join()
        ends.set()
        for thread in emptying:
            thread.join()
    assert sorted(done) == [0, 1, 2]


MASKS = """
import os, sys, warnings
from pathlib import Path
from support.plain_user import become_plain
from litz.cache.disk import Cache, digest
become_plain()
os.umask(int(sys.argv[2], 8))
warnings.simplefilter("error")
def make(folder):
    (folder / "part").mkdir()
    (folder / "part" / "text").write_text("3")
    assert os.system(f"cat {folder}/part/text > {folder}/copy") == 0
for _ in range(2):
    cache = Cache(Path(sys.argv[1]), limit=1 << 20)
    assert cache.use("cpp", digest("k"), make, lambda f: (f / "copy").read_text()) == "3"
print(cache.hits, oct(os.umask(0)))
"""


@pytest.mark.parametrize(
    ("mask", "mode"), [("022", 0o755), ("002", 0o755), ("000", 0o755), ("177", 0o700), ("222", 0o755), ("777", 0o700)]
)
def test_rights_of_what_is_kept(tmp_path: Path, mask: str, mode: int) -> None:
    """The owner has them all, others may read where the process's mask lets them, and never write."""
    root = tmp_path / "cache"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    line = [sys.executable, "-c", MASKS, str(root), mask]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=path)
    assert done.stdout == f"1 {oct(int(mask, 8))}\n", done.stderr
    entry = root / "cpp" / digest("k")
    folders = (root, entry.parent, entry, entry / "part")
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folders} == {p.name: oct(mode) for p in folders}
    files = (entry / "copy", entry / "part" / "text", entry / FILE, root / ".sizes")
    assert {path.stat().st_mode & 0o777 for path in files} == {mode & 0o666}


def test_a_forked_process_leaves_temporary_folders_alone() -> None:
    cache = Cache(Path("unused"), enabled=False)
    child = os.fork()
    if child == 0:
        try:
            known = weakref.finalize._registry  # type: ignore[attr-defined]
            for one in [one for one, info in known.items() if info.func is not cache_module._remove_own]:
                del known[one]  # other tests' folders are this process's to remove, and not its copy's
            weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # as Python does at its end
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert cache.root.is_dir()
    root = cache.root
    del cache
    gc.collect()
    assert not root.exists()
