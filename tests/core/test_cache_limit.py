"""The limit of the disk cache, and caches that lie under it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from litz.cache import limit, manifest
from litz.cache.disk import Cache, digest
from litz.cache.limit import SIZES, Limit, bytes_of, entries, make_room
from litz.options import make_options

MANY = 1000
"""Bytes of an entry's file."""


def put(cache: Cache, name: str, kind: str = "cpp", age: float = 0.0) -> Path:
    folder = cache.build(kind, digest(name), lambda folder: (folder / "data").write_bytes(bytes(MANY)) and None)
    then = time.time() - age
    os.utime(folder / manifest.FILE, (then, then))
    return folder


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=0)
    old, used, young = put(cache, "a", age=300), put(cache, "b", age=200), put(cache, "c", age=100)
    size = bytes_of(old)
    assert Cache(tmp_path).find("cpp", digest("b")) == used, "which is a use"
    last = put(Cache(tmp_path, limit=int(3.5 * size)), "d")
    assert [path.is_dir() for path in (old, used, young, last)] == [False, True, True, True]
    assert int((tmp_path / SIZES).read_text()) == 3 * size


def test_room_is_made_for_more_than_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=0)
    for number in range(20):
        put(cache, str(number), age=1000 - number)
    size = bytes_of(next(entries(tmp_path)).folder)
    limited = Cache(tmp_path, limit=10 * size)
    put(limited, "new")
    assert len(list(entries(tmp_path))) == 9, "a tenth of it is free"
    put(limited, "another")
    assert len(list(entries(tmp_path))) == 10


def test_what_was_measured_goes_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    record, kernel = put(cache, "a", "autotune", age=1000), put(cache, "b", age=10)
    make_room(tmp_path, int(1.5 * bytes_of(record)))
    assert record.is_dir() and not kernel.is_dir()
    make_room(tmp_path, 1)
    assert not record.is_dir()


def test_without_a_limit_nobody_counts(tmp_path: Path) -> None:
    put(Cache(tmp_path, limit=0), "a")
    assert not (tmp_path / SIZES).exists()


DAMAGED: dict[str, Callable[[Path], object]] = {
    "no line": lambda path: path.write_text(""),
    "half a line": lambda path: path.write_text("12a4"),
    "an empty line": lambda path: path.write_text("12\n\n13\n"),
    "zeros": lambda path: path.write_bytes(bytes(100)),
    "no text": lambda path: path.write_bytes(b"\xff\xfe12\n"),
    "a number that is none": lambda path: path.write_text("1" * 5000 + "\n"),
    "a link without end": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_the_limit_is_kept_with_a_damaged_count(tmp_path: Path, damage: str) -> None:
    limited = Cache(tmp_path, limit=5 * bytes_of(put(Cache(tmp_path), "first")))
    DAMAGED[damage](tmp_path / SIZES)
    for number in range(25):
        assert put(limited, str(number)).is_dir()
    assert sum(entry.bytes for entry in entries(tmp_path)) <= limited._limit.bytes + (
        20 * MANY if damage in ("no line", "an empty line") else 0  # a smaller sum is believed, and right in the end
    )


def test_what_killed_processes_have_left_goes(tmp_path: Path) -> None:
    """Folders of other versions of litz, too, which built in the cache."""
    put(Cache(tmp_path), "first")
    left = [tmp_path / "cpp" / f".0123abcd-{ending}" for ending in ("0a1b2c3d", "abc_1xyz", "under_wa")]
    for folder in left:
        folder.mkdir()
        (folder / "kernel.so").write_bytes(bytes(1 << 20))
    for folder in left[:2]:
        os.utime(folder, (time.time() - 3600,) * 2)
    put(Cache(tmp_path, limit=1 << 20), "second")
    assert [folder.exists() for folder in left] == [False, False, True], "the last may be under way"
    Cache(tmp_path).clear()
    assert not left[2].exists()


def test_a_process_looks_for_leftovers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile has a Cache of its own, and among thousands of entries a look takes as long as a small compile."""
    looked = list[Path]()
    monkeypatch.setattr(limit, "leftovers_in", lambda kind, seconds: looked.append(kind) or ())
    for name in ("a", "b", "c"):
        put(Cache(tmp_path, limit=100 * MANY), name)
    assert looked == [tmp_path / "cpp"]


def test_many_lines_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz.cache.limit.MOST_LINES", 3)
    cache = Cache(tmp_path, limit=1 << 20)
    for number in range(8):
        put(cache, str(number))
    lines = (tmp_path / SIZES).read_text().splitlines()
    assert len(lines) <= 3 and sum(map(int, lines)) == sum(entry.bytes for entry in entries(tmp_path))


def test_another_process_that_makes_room_is_left_alone(tmp_path: Path) -> None:
    from filelock import FileLock

    put(Cache(tmp_path), "a")
    with FileLock(tmp_path / ".room.lock"):
        Limit(tmp_path, 1).written(put(Cache(tmp_path), "b"))
    assert len(list(entries(tmp_path))) == 2


def test_clearing_starts_the_count_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1 << 20)
    put(cache, "a")
    cache.clear()
    assert not (tmp_path / SIZES).exists()
    put(cache, "b")
    assert int((tmp_path / SIZES).read_text().split()[0]) == bytes_of(next(entries(tmp_path)).folder)


# Caches under it.


def test_what_a_shared_cache_has_is_not_built(tmp_path: Path) -> None:
    team, own = tmp_path / "team", tmp_path / "own"
    folder = put(Cache(team), "a")
    before = sorted(team.rglob("*"))
    cache = Cache(own, shared=(tmp_path / "absent", team))
    assert put_again(cache, "a") == folder and cache.hits == 1
    assert put(cache, "b").is_relative_to(own)
    assert sorted(team.rglob("*")) == before


def put_again(cache: Cache, name: str) -> Path:
    def fail(folder: Path) -> None:
        raise AssertionError("it is there")

    return cache.build("cpp", digest(name), fail)


def test_a_damaged_entry_of_a_shared_cache_is_built_here(tmp_path: Path) -> None:
    team, own = tmp_path / "team", tmp_path / "own"
    folder = put(Cache(team), "a")
    (folder / "data").write_bytes(b"damage")
    assert put(Cache(own, shared=(team,)), "a").is_relative_to(own)
    assert (folder / "data").read_bytes() == b"damage", "which is not ours to mend"


def test_the_options_reach_the_cache(tmp_path: Path) -> None:
    from litz.driver.compiler import make_compiler

    put(Cache(tmp_path / "team"), "a")
    given = {"cache_dir": tmp_path / "own", "cache_shared": [str(tmp_path / "team")], "cache_limit": 7}
    cache = make_compiler(None, given).cache
    assert cache.find("cpp", digest("a")) is not None
    assert cache._limit == Limit(tmp_path / "own", 7 << 20)
    assert make_options(environ={}).cache_limit == 4096
