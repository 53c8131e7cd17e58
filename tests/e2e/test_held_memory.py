"""Memory of a compiled function's output that is held in any way is not written by later calls, and what nobody holds
serves them."""

from __future__ import annotations

import ctypes
import multiprocessing.reduction
from collections.abc import Callable

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

SIZE = (256, 256)  # 256 KiB, which the pool serves


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@pytest.fixture(scope="module")
def doubled() -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(double, backend="litz")


def of(number: float) -> torch.Tensor:
    return torch.full(SIZE, float(number))


def values_at(place: int) -> torch.Tensor:
    """What lies at an address, copied."""
    return torch.tensor((ctypes.c_float * (SIZE[0] * SIZE[1])).from_address(place)[::64])


def over(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0).set_(storage, 0, SIZE, (SIZE[1], 1))


class Owner:
    """As an extension has it: an address, and an owner of what lies there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.place, self.owner = tensor.data_ptr(), tensor.untyped_storage()

    def read(self) -> torch.Tensor:
        return values_at(self.place)


def through_queue(strategy: str, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        data = bytes(multiprocessing.reduction.ForkingPickler.dumps(y))
    finally:
        mp.set_sharing_strategy(before)
    return lambda: multiprocessing.reduction.ForkingPickler.loads(data)


def with_numpy(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    array = y.numpy()
    return lambda: torch.from_numpy(array)


def with_storage(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    storage = y.untyped_storage()
    return lambda: over(storage)


def with_capsule(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    capsule = torch.utils.dlpack.to_dlpack(y)
    return lambda: torch.utils.dlpack.from_dlpack(capsule)


def with_memoryview(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    view = memoryview(y.numpy())
    return lambda: torch.frombuffer(view, dtype=torch.float32).reshape(SIZE)


def with_owner(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    return Owner(y).read


def with_set(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    other = torch.empty(0).set_(y)
    return lambda: other


def with_set_elsewhere(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    view = y.detach()
    y.set_(torch.zeros(3))
    return lambda: view


def with_graph(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    weight = torch.ones(SIZE, requires_grad=True)
    product = y * weight
    return lambda: torch.autograd.grad(product.sum(), weight, retain_graph=True)[0]


def with_hooks(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    kept: list[torch.UntypedStorage] = []

    def pack(tensor: torch.Tensor) -> int:
        kept.append(tensor.untyped_storage())
        return len(kept) - 1

    weight = torch.ones(SIZE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda number: over(kept[number])):
        product = y * weight
    return lambda: torch.autograd.grad(product.sum(), weight, retain_graph=True)[0]


def grown(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    y.resize_(2 * SIZE[0], SIZE[1])
    return lambda: y[: SIZE[0]]


def shrunk_and_grown(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    y.untyped_storage().resize_(64)
    y.untyped_storage().resize_(4 * SIZE[0] * SIZE[1])
    y.fill_(7)
    return lambda: y


def shared(y: torch.Tensor) -> Callable[[], torch.Tensor]:
    storage = y.share_memory_().untyped_storage()
    return lambda: over(storage)


HOLDERS: dict[str, Callable[[torch.Tensor], Callable[[], torch.Tensor]]] = {
    "storage": with_storage,
    "numpy": with_numpy,
    "dlpack": with_capsule,
    "memoryview": with_memoryview,
    "address with owner": with_owner,
    "set_": with_set,
    "set_ elsewhere": with_set_elsewhere,
    "graph": with_graph,
    "hooks": with_hooks,
    "resize_": grown,
    "storage.resize_": shrunk_and_grown,
    "share_memory_": shared,
    "queue by descriptor": lambda y: through_queue("file_descriptor", y),
    "queue by name": lambda y: through_queue("file_system", y),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_stays(holder: str, doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """An output of 7s, of which no tensor is left, over calls whose outputs are others."""
    y = doubled(of(3))
    read = HOLDERS[holder](y)
    del y
    for number in (10.0, 20.0, 30.0):
        other = doubled(of(number))
        assert bool((other == 2 * number + 1).all())
    assert bool((read() == 7).all())


def test_what_nobody_holds_serves_the_next_call(doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    places = {doubled(of(number)).data_ptr() for number in range(8)}
    assert len(places) == 1


def test_a_handle_of_the_memory_outlives_the_tensor(doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What a queue hands over is a copy in shared memory; the process's own goes back when the tensor is shared."""
    y = doubled(of(3))
    place = y.data_ptr()
    y.share_memory_()
    other = doubled(of(4))
    assert y.data_ptr() != place == other.data_ptr() and bool((y == 7).all()) and bool((other == 9).all())


class Doubled(Dataset[torch.Tensor]):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.function = function

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.function(of(index))


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_workers_of_a_loader_return_outputs(
    strategy: str, doubled: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(of(0))  # compiled before the fork
    torch.set_num_threads(1)
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        found = list(DataLoader(Doubled(doubled), batch_size=None, num_workers=2, multiprocessing_context="fork"))
    finally:
        mp.set_sharing_strategy(before)
    assert [index for index, y in enumerate(found) if not bool((y == 2 * index + 1).all())] == []
