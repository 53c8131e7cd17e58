"""Programs called by several threads at once with their results held, and statements with a graph inside: the fuzzer
sees what litz once got wrong there."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.driver import code_loading as building
from litz.runtime.graph_code import load_code
from litz_testing.fuzz import nesting
from litz_testing.fuzz.check import Checker, Failure
from litz_testing.fuzz.execute import FuzzCompiler
from litz_testing.fuzz.holders import CHANGES, HOLDERS, SENT, Holder, Keeper, bits
from litz_testing.fuzz.inputs import InputSpec
from litz_testing.fuzz.program import FuzzProgram, Statement
from litz_testing.fuzz.together import large_inputs

F32 = torch.float32
DOUBLED = FuzzProgram(
    (InputSpec((5, 7), F32, 1),), (Statement("v0", "x0 * 2 + 1"),), ("v0",), dynamic=True, label="t:2", together=True
)


class Fresh:
    """Hands out new memory each time."""

    def empty(self, size: Any, stride: Any, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        return torch.empty(0, dtype=dtype).set_(self.take(nbytes), 0, size, stride)

    def take(self, nbytes: int) -> torch.UntypedStorage:
        return torch.UntypedStorage(nbytes)

    def end_of_call(self) -> None:
        pass


class Careless(Fresh):
    """Hands memory out again by its use count alone, as litz's own pool once did. The count knows neither of another
    process nor of Python's object for the storage, which everybody shares. Nobody comes between the count and the use,
    so that threads are safe."""

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self.lock = threading.Lock()

    def empty(self, size: Any, stride: Any, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        with self.lock:
            return super().empty(size, stride, dtype, nbytes)

    def take(self, nbytes: int) -> torch.UntypedStorage:
        for storage in self.storages:
            if storage.nbytes() == nbytes and torch._C._storage_Use_Count(storage._cdata) == 1:
                return storage
        self.storages.append(torch.UntypedStorage(nbytes))
        return self.storages[-1]


class Racing(Fresh):
    """Hands the same memory to two threads that ask at once, and new memory to one that asks alone. WINDOW: how many
    seconds the first of two waits for the second, so that a busy machine has the race as well."""

    WINDOW = 0.05

    def __init__(self) -> None:
        self.asked: tuple[torch.UntypedStorage, threading.Event] | None = None

    def take(self, nbytes: int) -> torch.UntypedStorage:
        other, self.asked = self.asked, None
        if other is not None and other[0].nbytes() == nbytes:
            other[1].set()
            return other[0]
        storage, come = torch.UntypedStorage(nbytes), threading.Event()
        self.asked = storage, come
        come.wait(self.WINDOW)
        if self.asked is not None and self.asked[0] is storage:
            self.asked = None
        return storage


@pytest.fixture
def failure_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Failure | None]:
    def found(pool: Any) -> Failure | None:
        def load(entry: Any, folder: Any, launchers: Any, own: Any, *rest: Any) -> Any:
            return load_code(entry, folder, launchers, pool, *rest)

        monkeypatch.setattr(building, "load_code", load)
        checker = Checker()
        failure = checker.check(DOUBLED)
        assert checker.runs["together"] == 1 and not checker.torch_failures
        return failure

    return found


def test_a_race_between_threads_is_found(failure_with: Callable[[Any], Failure | None]) -> None:
    found = failure_with(Racing())
    assert found is not None and found.kind == "together: wrong" and "beside others" in found.message
    assert failure_with(Fresh()) is None


def test_memory_that_is_held_without_its_tensor_is_found(failure_with: Callable[[Any], Failure | None]) -> None:
    found = failure_with(Careless())
    assert found is not None and found.kind == "together: wrong"
    assert any(f"held by {how}" in found.message for how in ("shared by", "another process", "untyped_storage()"))


@pytest.mark.parametrize("label", ["t:5", "t:9"])  # which hold by DLPack and by a memoryview what another way moves
def test_results_in_one_storage_are_not_moved(label: str) -> None:
    """torch moves a storage that it shares with a process; who has an address in it then reads freed memory."""
    program = replace(DOUBLED, outputs=("v0", "v0"), label=label)
    checker = Checker()
    assert checker.check(program) is None and checker.runs["together"] == 1
    assert not any(checker.runs[f"held by {how}"] for how in ("another process", "shared by file"))


def test_threads_whose_positions_lie_outside_do_not_run() -> None:
    """s62:568: of other data than the first thread's, for which eager raises, too."""
    inputs = (InputSpec((2, 7), F32, 1), InputSpec((9,), torch.int64, 11, kind="index", high=7))
    statement = Statement("v0", "torch.index_select(x0[:, 1:], 1, x1)")
    program = FuzzProgram(inputs, (statement,), ("v0",), dynamic=True, label="t:9", together=True)
    assert large_inputs(program) is not None
    assert Checker().check(program) is None


def test_inputs_are_large() -> None:
    (spec,) = large_inputs(DOUBLED) or ()
    assert spec.storage_size * 4 > 1 << 17 and spec.dtype == F32


def test_a_program_whose_values_no_memory_holds_has_none_and_is_not_run() -> None:
    specs = (InputSpec((4, 1), torch.float64, 1), InputSpec((1, 5), torch.float64, 2))
    program = FuzzProgram(specs, (Statement("v0", "(x0 @ x1).softmax(-1)"),), ("v0",))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert large_inputs(program) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**20  # KiB; the product takes 12 GiB


@pytest.mark.nightly
def test_a_program_that_large_inputs_make_slow_has_none() -> None:
    """s55m:4964: each row is written once for each index, twelve times."""
    text = "torch.index_put(x0, (torch.arange(x0.size(0)).unsqueeze(1), x1), x2, accumulate=True)"
    inputs = (InputSpec((5, 1), torch.int8, 1), InputSpec((5,), torch.int64, 2, kind="index", high=1))
    program = FuzzProgram(
        (*inputs, InputSpec((), torch.int8, 3)), (Statement("v0", text),), ("v0",), dynamic=True, together=True
    )
    assert large_inputs(program) is None


@pytest.fixture(scope="module")
def holders() -> Iterator[dict[str, Holder]]:
    keeper = Keeper()
    yield {**HOLDERS, "another process": keeper.hold}
    keeper.close()


@pytest.mark.parametrize("how", [*HOLDERS, "another process"])
def test_a_holder_holds_the_memory_itself(how: str, holders: dict[str, Holder]) -> None:
    """A holder that copies would see no change, and a fault would pass."""
    value = torch.arange(12.0).reshape(3, 4).mT
    read = holders[how](value)
    before = bits(value)
    assert torch.equal(bits(read()), before)
    value.data.mul_(-3)  # autograd, which would refuse what it saved, does not know of it
    if how == "DLPack":
        read = holders[how](value)  # a capsule is read once
    assert not torch.equal(bits(value), before) and torch.equal(bits(read()), bits(value))


@pytest.mark.parametrize("how", [*HOLDERS, "another process"])
def test_what_nobody_writes_has_not_changed(how: str, holders: dict[str, Holder]) -> None:
    """s51a:1903, 2934, 3161, 3256, 3288 and s51n:4946: a storage does not say that a tensor reads it as negated or
    conjugated, and arithmetic gives another NaN than its operand. The bits are those of NaN, -NaN, infinity, 0, -0."""
    half = torch.tensor([0x7FC1, -0x3F, 0x7F80, 0, -0x8000], dtype=torch.int16).view(torch.bfloat16)
    single = torch.tensor([0x7FC00001, -1, 0x7F800000, 0, -(1 << 31)], dtype=torch.int32).view(F32)
    pairs = torch.complex(single, single.flip(0))
    values = [half, single, pairs, torch.arange(5), pairs.conj().imag, pairs.conj(), torch._neg_view(pairs).conj()]
    for value in values:
        before = bits(value)
        read = holders[how](value)
        assert torch.equal(bits(read()), before), value


@pytest.mark.parametrize("both", ["x0", "x0 * 2"])
def test_results_of_one_memory_may_be_held_in_any_way(both: str) -> None:
    """done40b:2946 and 3117: what is sent to another process takes its memory along, so that a NumPy array of another
    result of that storage is of memory that has ended, in eager too."""
    lines = (Statement("v0", both), Statement("v1", "v0[:]"))
    program = FuzzProgram((InputSpec((5, 7), F32, 1),), lines, ("v0", "v1", "v0"), dynamic=True, together=True)
    checker = Checker()
    executable = checker.compiler.compile(program, checker._inputs(program, program.inputs))
    checker.compiler.finish()
    for number in range(12):
        assert not checker.together.complaint(replace(program, label=f"alike:{number}"), executable, False)
    ways = [how for how, count in checker.runs.items() if how.startswith("held by") and count]
    assert len(ways) > 5 and not any(f"held by {how}" in ways for how in SENT)


def test_gradients_that_eager_refuses_are_no_failure() -> None:
    """done40b:2499, 4383 and 4691: eager adds no numbers of float8."""
    lines = (Statement("v0", "torch.stack([x0.to(torch.float8_e4m3fn)] * 2).to(torch.bfloat16)"),)
    program = FuzzProgram((InputSpec((2, 1), F32, 3),), lines, ("v0",), grad=True, label="refuses:0", together=True)
    checker = Checker()
    assert checker.check(program) is None and checker.runs["together"] == 1


def test_storages_change_as_named() -> None:
    sizes = {how: torch.arange(12.0).untyped_storage() for how in CHANGES}
    for how, storage in sizes.items():
        CHANGES[how](storage)
    assert sizes["emptied"].nbytes() == 0 and sizes["grown"].nbytes() > 48 and sizes["share_memory_()"].is_shared()


@pytest.mark.parametrize(
    ("text", "grad"),
    [
        ("chain(region_sine, x0, x1, x1)", True),
        ("layers(region_linear, x0, x1)", True),
        (nesting.CHECKPOINTS[0].format("x0", "x1"), True),
        (nesting.CHECKPOINTS[2].format("x0", "x1"), False),
        *((text.format("x0", "x1"), number == 3) for number, text in enumerate(nesting.BRANCHES)),
    ],
)
def test_graphs_inside_a_program_reach_litz(text: str, grad: bool) -> None:
    program = FuzzProgram(
        (InputSpec((4, 4), F32, 1), InputSpec((4, 4), F32, 2)),
        (Statement("v0", text, rough=True),),
        ("v0",),
        grad=grad,
        by_dynamo=True,
    )
    checker = Checker(FuzzCompiler(compiled=False))
    assert checker.check(program) is None
    assert not checker.torch_failures and checker.runs["interpreted"] == 2
    called = next(name for name in ("chain", "layers", "checkpointed", "branch") if name in text)
    assert f"def {called}(" in program.script()
    compile(program.script(), "script", "exec")
