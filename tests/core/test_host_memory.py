"""The allocator of host memory: what it keeps, for how long, and what happens without it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from litz.cache.disk import Cache
from litz.errors import KernelBuildError
from litz.runtime import host_memory
from litz.runtime.pool import SMALLEST, Pool
from support.warm import run_warm

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of this module's own, so that no other test's memory counts."""
    return host_memory.build(None, Cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pool(library: Path) -> Pool:
    host_memory.release(library)
    return Pool(lambda: host_memory.address(library))


def block(pool: Pool, nbytes: int) -> torch.Tensor:
    return pool.empty((nbytes,), (1,), torch.uint8, nbytes)


def test_memory_comes_back_when_its_last_owner_is_gone(pool: Pool, library: Path) -> None:
    first = block(pool, MIB)
    place, storage = first.data_ptr(), first.untyped_storage()
    del first
    other = block(pool, MIB)
    assert other.data_ptr() != place, "the storage has an owner"
    del storage
    assert host_memory.counts(library)[0] == MIB
    assert block(pool, MIB).data_ptr() == place


def test_a_storage_is_as_eagers(pool: Pool) -> None:
    storage = block(pool, MIB).untyped_storage()
    assert (storage.device.type, storage.nbytes(), storage.resizable()) == ("cpu", MIB, True)
    assert storage.data_ptr() % 64 == 0
    storage.resize_(0)
    assert storage.data_ptr() == 0
    storage.resize_(2 * MIB)
    assert torch.empty(0, dtype=torch.uint8).set_(storage, 0, (2 * MIB,)).fill_(3).sum().item() == 6 * MIB


def test_memory_of_another_default_device(pool: Pool) -> None:
    with torch.device("meta"):
        assert block(pool, MIB).device.type == block(pool, SMALLEST - 1).device.type == "cpu"


def test_sizes_that_change_keep_no_more_than_calls_need(pool: Pool, library: Path) -> None:
    """200 sizes, growing and then shrinking: half as much again as the most in use at a time is the bound."""
    sizes = [n * 26_000 for n in range(6, 206)]
    for nbytes in sizes + sizes[::-1]:
        held = [block(pool, nbytes), block(pool, nbytes // 2)]
        del held
        used, kept, _ = host_memory.counts(library)
        assert used == 0 and kept <= 1.5 * 1.5 * (1.125 * max(sizes))


def test_sizes_that_differ_a_little_share_a_block(pool: Pool) -> None:
    assert len({block(pool, 10 * MIB - n * 1024).data_ptr() for n in range(64)}) == 1


def test_a_small_request_takes_no_large_block(pool: Pool, library: Path) -> None:
    large = block(pool, 64 * MIB)
    del large
    small = block(pool, MIB)
    assert host_memory.counts(library)[0] <= 1.25 * MIB and small.nbytes == MIB


def test_torchs_profiler_sees_the_memory(pool: Pool) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        with torch.profiler.record_function("taken"):
            held = block(pool, MIB)
        with torch.profiler.record_function("given"):
            del held
    seen = {event.key: event.cpu_memory_usage for event in profile.key_averages()}
    assert seen["taken"] == MIB and seen["given"] == -MIB


def test_threads_never_share_a_block(pool: Pool) -> None:
    """Each of 16 threads writes its own number, waits, and reads it."""
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(60):
            held = [block(pool, SMALLEST + 4096 * n).fill_(number) for n in range(3)]
            time.sleep(0)
            wrong.extend(number for one in held if not bool((one == number).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_process_has_memory_of_its_own(pool: Pool) -> None:
    """The child takes what the parent keeps, and the parent's own block stays. OpenMP's threads do not survive a fork,
    so the child writes little."""
    held, kept = block(pool, MIB).fill_(1), block(pool, MIB)
    del kept
    child = os.fork()
    if child == 0:
        own = block(pool, MIB)[:8].fill_(2)
        held[:8].fill_(3)
        os._exit(0 if own.tolist() == [2] * 8 and block(pool, MIB).nbytes == MIB else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((held == 1).all())


IDLE = """
import sys, time, threading
from pathlib import Path
from litz.runtime import host_memory
from litz.runtime.pool import Pool
import torch
library = Path(sys.argv[1])
pool = Pool(lambda: host_memory.address(library))
before = len(list(Path("/proc/self/task").iterdir()))
del_me = pool.empty((1 << 24,), (1,), torch.uint8, 1 << 24)
del del_me
kept = host_memory.counts(library)[1]
until = time.monotonic() + 30
while host_memory.counts(library)[1] and time.monotonic() < until:
    time.sleep(0.2)
time.sleep(0.3)
print(kept, host_memory.counts(library)[1], len(list(Path("/proc/self/task").iterdir())) - before)
"""


@pytest.mark.thorough
def test_what_nobody_takes_goes_back_to_the_system(library: Path) -> None:
    """And the thread that looks after it ends."""
    done = run_warm(["-c", IDLE, str(library)])
    assert done.stdout.split() == [str(1 << 24), "0", "0"], done.stderr


PRESSED = """
import resource, sys
from pathlib import Path
from litz.runtime import host_memory
from litz.runtime.pool import Pool
import torch
library, MIB = Path(sys.argv[1]), 1 << 20
pool = Pool(lambda: host_memory.address(library))
block = lambda mib: pool.empty((mib * MIB,), (1,), torch.uint8, mib * MIB)
held = [block(100) for _ in range(4)]
del held
kept = host_memory.counts(library)[1]
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 100 * MIB, resource.RLIM_INFINITY))
large = block(350)
print(kept, large.nbytes, host_memory.counts(library)[1])
try:
    block(2000)
except RuntimeError as error:
    print("refused" if "allocate memory" in str(error) else error)
print(host_memory.counts(library)[0] == 352 * MIB)
"""


def test_under_pressure_all_that_is_kept_goes_back(library: Path) -> None:
    """An address space with no room for a block but for what is kept; what is too large is refused as by torch."""
    done = run_warm(["-c", PRESSED, str(library)])
    first, *others = done.stdout.splitlines()
    kept, taken, left = map(int, first.split())
    assert kept >= 400 * MIB and taken == 350 * MIB and left == 0, done.stderr
    assert others == ["refused", "True"], done.stderr


def test_without_a_compiler_memory_is_torchs(tmp_path: Path) -> None:
    assert host_memory.load("no-such-compiler", Cache(tmp_path)) == 0
    assert block(Pool(lambda: 0), MIB).fill_(1).sum().item() == MIB


def test_a_compiler_that_cannot_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("#error no headers\n", encoding="utf-8")
    monkeypatch.setattr(host_memory, "SOURCE", wrong)
    with pytest.raises(KernelBuildError, match="no headers"):
        host_memory.build(None, Cache(tmp_path / "cache"))
    assert host_memory.find(None, Cache(tmp_path / "cache")) is None


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_text("nothing", encoding="utf-8")
    assert host_memory.address(tmp_path / "a.so") == 0


def test_a_process_asks_once_and_only_for_what_is_large() -> None:
    asked: list[int] = []
    pool = Pool(lambda: asked.append(1) or 0)  # type: ignore[func-returns-value]
    block(pool, SMALLEST - 1)
    assert asked == []
    block(pool, MIB), block(pool, MIB)
    assert asked == [1]
