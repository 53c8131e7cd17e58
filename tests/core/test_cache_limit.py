"""The limit of the disk cache, and caches that lie under it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from litz.options import make_options
from litz.runtime import manifest
from litz.runtime.cache import Cache, digest
from litz.runtime.cache_limit import SIZES, Limit, bytes_of, entries, make_room

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


@pytest.mark.parametrize("text", ["", "no number\n", "12\n\n13\n"])
def test_a_damaged_count_does_no_harm(tmp_path: Path, text: str) -> None:
    put(Cache(tmp_path), "a")
    (tmp_path / SIZES).write_text(text)
    assert put(Cache(tmp_path, limit=1 << 20), "b").is_dir()


def test_many_lines_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litz.runtime.cache_limit.MOST_LINES", 3)
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
    from litz.compiler import make_compiler

    put(Cache(tmp_path / "team"), "a")
    given = {"cache_dir": tmp_path / "own", "cache_shared": [str(tmp_path / "team")], "cache_limit": 7}
    cache = make_compiler(None, given).cache
    assert cache.find("cpp", digest("a")) is not None
    assert cache._limit == Limit(tmp_path / "own", 7 << 20)
    assert make_options(environ={}).cache_limit == 4096
