"""Packages and exported entries that an attacker has made: each is refused with one error, or as no entry, and nothing
outside of the target folder is touched."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import litz
import litz_aot
from litz.cache import artifacts, manifest, stores
from litz.cache.disk import digest
from litz.cache.stores import unpack
from litz_aot.errors import PackageError

KEY = digest("key")


def packed(name: str = "kernel.so", data: bytes = b"code", **changes: Any) -> dict[str, Any]:
    zipped = base64.b64encode(zlib.compress(data)).decode()
    known = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "zlib": zipped}
    return {name: {**known, **changes}}


BOMB = base64.b64encode(zlib.compress(bytes(1 << 26), 9)).decode()
EMPTY = hashlib.sha256(b"").hexdigest()
NAMES = [
    "../evil",
    "/tmp/evil",
    "a/b",
    "..",
    ".",
    "",
    "manifest.json",
    "nul\0",
    "x" * 300,
    "\ud800",
    "a\\b",
    "C:x",
    " ",
    "-o\n",
]
ENTRIES: dict[str, Any] = {
    **{f"the name {name[:12]!r}": packed(name) for name in NAMES},
    "a bomb": packed(zlib=BOMB),
    "a bomb that claims to be empty": packed(zlib=BOMB, bytes=0, sha256=EMPTY),
    "a bomb that claims a bit": packed(zlib=BOMB, bytes=100),
    "a bomb that claims much": packed(zlib=BOMB, bytes=1 << 60),
    "many bombs": {k: v for n in range(8) for k, v in packed(f"f{n}", bytes(1 << 19)).items()},
    "half of a file": packed(zlib=base64.b64encode(zlib.compress(os.urandom(1000))[:500]).decode(), bytes=1000),
    "more than it says": packed(bytes=3, sha256=hashlib.sha256(b"cod").hexdigest()),
    "another sum": packed(sha256="0" * 64),
    "no base64": packed(zlib="$$$$"),
    "a negative size": packed(bytes=-1),
    "a size that is text": packed(bytes="4"),
    "infinite": packed(bytes=float("inf")),
    "a list": [packed()],
    "a number": 3,
    "null": None,
    "no files": {},
}


@pytest.mark.parametrize("attack", ENTRIES)
def test_an_exported_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    text = json.dumps(ENTRIES[attack]).encode()
    monkeypatch.setattr(stores, "LARGEST", 1 << 20)
    tracemalloc.start()
    try:
        assert unpack(text) is None
        assert not artifacts.keep(f"cpp/{KEY}", text, tmp_path / "cache")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 200_000, b'{"a":' * 100_000, b"\0" * 100, b"\xff\xfe", b"1" * 5000])
def test_an_export_that_is_no_text_of_litz(tmp_path: Path, text: bytes) -> None:
    assert unpack(text) is None and not artifacts.keep(f"cpp/{KEY}", text, tmp_path / "cache")
    assert not list(tmp_path.iterdir())


PLACES = ("../x", f"../../{KEY}", f"cpp/../{KEY}", f"/cpp/{KEY}", f"cpp/{KEY}/..", f"cpp/{KEY[:-1]}")
OTHERS = (f"compiler/{KEY}", f"autotune/{KEY}", f"cpp/{KEY[:-1]}\0", f"cpp/{KEY[:-1]}\n", "")


@pytest.mark.parametrize("name", [*PLACES, *OTHERS])
def test_the_name_of_an_exported_entry(tmp_path: Path, name: str) -> None:
    assert not artifacts.keep(name, json.dumps(packed()).encode(), tmp_path / "cache")
    assert not list(tmp_path.iterdir())


def test_an_exported_entry_that_is_right_and_one_that_is_there(tmp_path: Path) -> None:
    """What is in the cache stays: no export replaces an entry."""
    assert artifacts.keep(f"cpp/{KEY}", json.dumps(packed()).encode(), tmp_path)
    assert artifacts.keep(f"cpp/{KEY}", json.dumps(packed(data=b"evil")).encode(), tmp_path)
    assert (tmp_path / "cpp" / KEY / "kernel.so").read_bytes() == b"code"


def test_an_export_of_litzs_is_no_pickle(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "stolen"),)

    assert unpack(pickle.dumps(Evil())) is None
    assert litz.load_cache_artifacts(pickle.dumps(Evil())) is None
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------------------------- packages


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "p"
    litz_aot.compile(lambda x: torch.softmax(x, -1) * 2, (torch.ones(8, 8),), folder)
    return folder


def library(folder: Path) -> Path:
    (found,) = (folder / "kernels").rglob("*.so")  # and not that of host memory, without which a package loads
    return found


def replace(folder: Path, make: Callable[[Path], object]) -> None:
    path = library(folder)
    path.unlink()
    make(path)


def half(folder: Path) -> None:
    """With a sum that agrees: the loader would end the process (SIGBUS)."""
    path = library(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    sums_anew(folder)


def sums_anew(folder: Path) -> None:
    data = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    data["sums"] = {name: manifest.sum_of(folder / name) for name in data["sums"]}
    (folder / "package.json").write_text(json.dumps(data), encoding="utf-8")


def changed(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        (kernel,) = data["kernels"].values()
        for name, value in changes.items():
            (kernel if name in kernel else data)[name] = value
        (folder / "package.json").write_text(json.dumps(data), encoding="utf-8")

    return change


def in_sums(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        changed(sums={**json.loads((folder / "package.json").read_text())["sums"], name: EMPTY})(folder)

    return change


PACKAGES: dict[str, Callable[[Path], object]] = {
    "a library that is a link": lambda p: replace(p, lambda path: path.symlink_to("/dev/zero")),
    "a library that is a pipe": lambda p: replace(p, os.mkfifo),
    "a library that is a folder": lambda p: replace(p, lambda path: path.mkdir()),
    "another library": lambda p: library(p).write_bytes(b"\x7fELF evil"),
    "half a library, with its sum": half,
    "a folder that is a link": lambda p: (
        shutil.move(p / "kernels", p.parent / "k"),
        (p / "kernels").symlink_to("../k"),
    ),
    "a list that is a link": lambda p: (
        shutil.move(p / "package.json", p.parent / "l"),
        (p / "package.json").symlink_to("../l"),
    ),
    "a list that is a pipe": lambda p: ((p / "package.json").unlink(), os.mkfifo(p / "package.json")),
    "a list that does not end": lambda p: ((p / "package.json").unlink(), (p / "package.json").symlink_to("/dev/zero")),
    "a huge list": lambda p: os.truncate(p / "package.json", 1 << 40),
    "a list that is deep": lambda p: (p / "package.json").write_text("[" * 1_000_000),
    "a file outside": in_sums("../outside"),
    "an absolute file": in_sums("/etc/hostname"),
    "a name with NUL": in_sums("a\0b"),
    "a name with a surrogate": in_sums("\ud800"),
    "a name that is long": in_sums("x" * 5000),
    "a kernel of very many arguments": changed(arguments=1 << 50),
    "a kernel of -1 arguments": changed(arguments=-1),
    "another version": changed(version=99),
    "another torch": changed(torch="1.0"),
    "another device": changed(device={"type": "cpu", "name": "?", "made_for": "?"}),
    "a module that is none": changed(exporter="no.such.module"),
    "a module that is relative": changed(exporter=".x"),
    "a module that is a number": changed(exporter=3),
    "deep inputs": changed(in_spec='[1, {"type": "builtins.tuple"'),
}


@pytest.mark.parametrize("attack", PACKAGES)
def test_a_package(whole: Path, tmp_path: Path, attack: str) -> None:
    folder = tmp_path / "target" / "p"
    shutil.copytree(whole, folder)
    PACKAGES[attack](folder)
    before = {path: path.lstat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    with pytest.raises(PackageError) as caught:
        litz_aot.load(folder)
    assert caught.value.todo and str(folder) in str(caught.value)
    assert {path: path.lstat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before


def test_a_hard_link_is_what_its_sum_says(whole: Path, tmp_path: Path) -> None:
    """A hard link is the file itself: a changed one has another sum. The file grows, as the process may still have the
    library mapped: the loader reads that as the process ends, which pages of a shorter file end otherwise (SIGBUS)."""
    shutil.copytree(whole, tmp_path / "p")
    os.link(library(tmp_path / "p"), tmp_path / "elsewhere")
    litz_aot.load(tmp_path / "p")
    with (tmp_path / "elsewhere").open("ab") as file:
        file.write(b"evil")
    with pytest.raises(PackageError, match="missing or damaged"):
        litz_aot.load(tmp_path / "p")
