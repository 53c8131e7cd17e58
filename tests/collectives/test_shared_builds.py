"""Kernels from another rank: who builds, who waits, and what is not believed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from litz.cache.disk import Cache
from litz.cache.manifest import FILE
from litz.cache.stores import NOTHING, Stores, pack, unpack
from litz_collectives.shared_builds import PREFIX, SharedBuilds


def folder_of(path: Path, **files: bytes) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def stores_of(shared: SharedBuilds) -> Stores:
    """As the hooks join the two."""

    def find(kind: str, key: str, check: Callable[[bytes], Any]) -> Any:
        content = shared.fetch(kind, key)
        return None if content is None else check(content)

    return Stores(find, shared.offer)


class Job:
    """Ranks with folders of their own and a store between them."""

    def __init__(self, folder: Path, seconds: float = 5.0) -> None:
        self.store, self.folder, self.seconds, self.built = dist.HashStore(), folder, seconds, []

    def cache(self, rank: int) -> Cache:
        return Cache(self.folder / str(rank), stores=stores_of(SharedBuilds(lambda: (self.store, rank), self.seconds)))

    def build(self, rank: int, kind: str = "cpp", key: str = "k", **files: bytes) -> dict[str, bytes]:
        def make(folder: Path) -> None:
            self.built.append((rank, kind, key))
            for name, data in (files or {"kernel": b"code"}).items():
                (folder / name).write_bytes(data)

        folder = self.cache(rank).build(kind, key, make)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def test_what_one_rank_built_serves_the_others(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(3):
        assert job.build(rank) == {"kernel": b"code"}
    assert job.built == [(0, "cpp", "k")]
    assert job.cache(2).find("cpp", "k") is not None, "a checked entry of its own disk"


def test_a_rank_waits_for_one_that_builds(tmp_path: Path) -> None:
    job, begun, go_on = Job(tmp_path), threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        go_on.wait(5)
        (folder / "kernel").write_bytes(b"slow")

    first = threading.Thread(target=lambda: job.cache(0).build("triton", "k", slow))
    first.start()
    begun.wait(5)
    threading.Timer(0.1, go_on.set).start()
    assert job.build(1, "triton") == {"kernel": b"slow"} and job.built == []
    first.join()


def test_measurements_stay_where_they_were_made(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(2):
        job.build(rank, "tune")
    assert [rank for rank, *_ in job.built] == [0, 1]


def test_a_rank_that_cannot_build_holds_up_nobody(tmp_path: Path) -> None:
    job = Job(tmp_path, seconds=60.0)

    def fails(folder: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.cache(0).build("cpp", "k", fails)
    assert job.build(1) == {"kernel": b"code"} and job.built == [(1, "cpp", "k")]


def test_a_rank_that_says_nothing_is_named_once(tmp_path: Path) -> None:
    job = Job(tmp_path, seconds=0.05)
    job.store.set(f"{PREFIX}/cpp/k/rank", "7")
    job.store.set(f"{PREFIX}/cpp/other/rank", "7")
    cache = job.cache(1)
    with pytest.warns(UserWarning, match="rank 1 builds its kernels by itself: rank 7 did not deliver") as said:
        for key in ("k", "other"):
            cache.build("cpp", key, lambda folder: (folder / "kernel").write_bytes(b"own"))
    assert len(said) == 1


def test_without_a_group_and_with_a_store_that_is_gone(tmp_path: Path) -> None:
    class Gone:
        def compare_set(self, *_: str) -> bytes:
            raise dist.DistStoreError("closed")

    for n, found in enumerate((None, (Gone(), 0))):
        cache = Cache(tmp_path / str(n), stores=stores_of(SharedBuilds(lambda found=found: found)))
        assert cache.build("cpp", "k", lambda folder: (folder / "kernel").write_bytes(b"x")).is_dir()


def test_packed_files_come_back(tmp_path: Path) -> None:
    files = {"kernel.so": bytes(range(256)) * 99, "empty": b""}
    assert unpack(pack(folder_of(tmp_path / "a", **files))) == files
    deep = folder_of(tmp_path / "b", x=b"1")
    folder_of(deep / "inner", y=b"2")
    assert pack(deep) == NOTHING and unpack(NOTHING) is None


def test_too_much_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("litz_collectives.shared_builds.MOST_BYTES", 100)
        job.build(0)
    assert job.build(1) == {"kernel": b"code"} and [rank for rank, *_ in job.built] == [0, 1]
    monkeypatch.setattr("litz.cache.stores.LARGEST", 100)
    assert pack(folder_of(tmp_path / "a", x=b"1" * 10)) == NOTHING


def test_graphs_are_not_shared(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(2):
        job.build(rank, "graph")
    assert [rank for rank, *_ in job.built] == [0, 1] and not job.store.num_keys()


@pytest.mark.parametrize(
    "damage", ["sum", "name", "size", "zlib", "text", "shape", "nested", "manifest", "sign", "much"]
)
def test_what_is_damaged_is_built_anew(tmp_path: Path, damage: str) -> None:
    files = json.loads(pack(folder_of(tmp_path / "a", x=b"code")))
    names = {"name": "../x", "manifest": FILE}
    if damage in names:
        files[names[damage]] = files.pop("x")
    changed = {
        "sum": ("sha256", "0" * 64),
        "size": ("bytes", 2),
        "zlib": ("zlib", "AAAA"),
        "sign": ("bytes", -1),
        "much": ("bytes", 1e400),
    }
    if damage in changed:
        name, value = changed[damage]
        files["x"][name] = value
    text = {"text": "{", "shape": "[1]", "nested": "[" * 100_000}.get(damage, json.dumps(files))
    assert unpack(text) is None
    job = Job(tmp_path)
    job.store.set(f"{PREFIX}/cpp/k/rank", "0")
    job.store.set(f"{PREFIX}/cpp/k/files", text)
    assert job.build(1) == {"kernel": b"code"} and job.built == [(1, "cpp", "k")]
