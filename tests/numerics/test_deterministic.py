"""torch's deterministic mode, and `numerics.deterministic`, which gives one function that mode."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from litz import report
from litz.ir import Loop
from litz.pipeline import make_compiler
from litz_numerics.deterministic import repeating
from litz_plugins.errors import PluginHookError
from numerics.values import same_bits

OPTION = {"numerics.deterministic": True}
ROWS, MANY = 16, 20_000
"""Rows that are written, and values that are written there: many meet in each, and threads share the work."""
X, AT, VALUES = torch.randn(ROWS, 3), torch.randint(0, ROWS, (MANY,)), torch.randn(MANY, 3)
PLACES = AT[:, None].expand(-1, 3)
F = nn.functional


@contextmanager
def deterministic(mode: str = "error") -> Iterator[None]:
    """Puts torch in a deterministic mode."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "index_put": lambda x: torch.index_put(x * 2, (AT,), VALUES),
    "index_put, added": lambda x: torch.index_put(x * 2, (AT,), VALUES, accumulate=True),
    "scatter": lambda x: torch.scatter(x * 2, 0, PLACES, VALUES),
    "scatter_add": lambda x: torch.scatter_add(x * 2, 0, PLACES, VALUES),
    "scatter_reduce": lambda x: (x * 2).scatter_reduce(0, PLACES, VALUES, "prod"),
    "index_add": lambda x: (x * 2).index_add(0, AT, VALUES),
    "index_copy": lambda x: (x * 2).index_copy(0, AT, VALUES),
    "gradient of an index": lambda x: torch.func.grad(lambda x: (x[AT] * VALUES).sum())(x),
    "gradient of an embedding": lambda x: torch.func.grad(lambda x: (F.embedding(AT, x) * VALUES).sum())(x),
    "gradient of gather": lambda x: torch.func.grad(lambda x: (x.gather(0, PLACES) * VALUES).sum())(x),
}
"""Writes of several values at one place, by threads that share the work."""
GIVEN = [X.clone() for _ in WRITES]
"""A tensor for each write, so that none shares its memory with another's."""


def every(*given: Tensor) -> list[Tensor]:
    return [write(x) for write, x in zip(WRITES.values(), given, strict=True)]


def meets(options: dict[str, Any]) -> tuple[list[Tensor], int]:
    """Returns the results of all writes, and how many of them kernels of litz's do where threads or lanes may meet."""
    torch._dynamo.reset()
    with report.collect() as reports:
        found = torch.compile(every, backend="litz", options=options)(*GIVEN)
    programs = [each.program for each in reports if each.program is not None]
    loops = [each for program in programs for each in program.operations if isinstance(each, Loop)]
    assert programs
    return found, sum(bool(store.indirect) for loop in loops for store in loop.stores)


def test_values_that_meet_are_written_by_torchs_kernel_that_repeats() -> None:
    with deterministic():
        wanted = every(*GIVEN)
        by_torchs_mode = meets({})
    for found, raced in (by_torchs_mode, meets(OPTION)):
        assert [name for name, *pair in zip(WRITES, found, wanted, strict=True) if not same_bits(*pair)] == []
        assert raced == 0
    assert meets({})[1] == len(WRITES), "elsewhere litz's own kernels write"


@pytest.mark.parametrize("options", [{}, OPTION], ids=["torch", "option"])
def test_an_op_without_a_form_that_repeats_raises_torchs_error(options: dict[str, Any]) -> None:
    def f(x: Tensor, at: Tensor) -> Tensor:
        return (x * 2).put(at, x[0])

    at = torch.tensor([3, 5, 3])
    with deterministic("default" if options else "error"):
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
            torch.compile(f, backend="litz", options=options or None)(X, at)
        assert torch.get_deterministic_debug_mode() == (0 if options else 2)


def test_the_users_mode_is_kept_where_there_is_one() -> None:
    def f(x: Tensor, at: Tensor) -> Tensor:
        return (x * 2).put(at, x[0])

    at = torch.tensor([3, 5, 7])
    with deterministic("warn"):
        assert same_bits(torch.compile(f, backend="litz", options=OPTION)(X, at), f(X, at))
        assert torch.get_deterministic_debug_mode() == 1


def test_memory_that_nobody_wrote_is_filled_as_in_eager() -> None:
    with deterministic():
        assert torch.compile(lambda x: torch.empty_like(x) + x, backend="litz")(X).isnan().all()


@pytest.mark.parametrize("name", ["max_autotune", "max_autotune_gemm", "autotune.search_cache"])
def test_what_is_measured_contradicts(name: str) -> None:
    compiler = make_compiler(None, OPTION | {name: True})
    with pytest.raises(PluginHookError, match=rf"contradicts {name}: (.|\n)*to do: give one of the two"):
        compiler.plugins.passes(compiler.options)


def test_the_mode_of_measurements_measures_nothing() -> None:
    options = make_compiler("max-autotune", OPTION).options
    assert not options.max_autotune and options.cuda_graphs
    assert make_compiler("max-autotune").options.max_autotune


TRAINED = """
import hashlib, torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(2)
words, rest = nn.Embedding(20, 48), nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 20))
x = torch.randint(0, 20, (700, 9))

@torch.compile(backend="litz", options={"numerics.deterministic": True})
def loss(x):
    return nn.functional.cross_entropy(rest(words(x)).flatten(0, 1), x.flatten())

optimizer = torch.optim.SGD([*words.parameters(), *rest.parameters()], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss(x).backward()
    optimizer.step()
digest = hashlib.sha256()
for value in [*words.parameters(), *rest.parameters()]:
    digest.update(value.detach().numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_that_compile_anew_have_the_same_bits(tmp_path: Path) -> None:
    """Which iterate over sets in other orders, too. (In CI tests/e2e/test_hash_seeds.py sees that of the default.)"""
    bits = set()
    for seed in ("1", "2"):
        own = os.environ | {"PYTHONHASHSEED": seed, "LITZ_CACHE_DIR": str(tmp_path / seed)}
        run = subprocess.run([sys.executable, "-c", TRAINED], env=own, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        bits.add(run.stdout)
    assert len(bits) == 1


def test_a_call_that_ends_leaves_the_mode_to_another_thread() -> None:
    """Torch has one mode for a process: the thread that came first ends first."""
    entered, ended = threading.Event(), threading.Event()
    seen = []

    def second() -> None:
        entered.set()
        assert ended.wait(30)
        seen.append(torch.are_deterministic_algorithms_enabled())

    thread = threading.Thread(target=repeating(second))

    def first() -> None:
        thread.start()
        assert entered.wait(30)

    repeating(first)()
    ended.set()
    thread.join()
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()
