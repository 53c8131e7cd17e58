"""Run in a process of its own: python -m tests.support.kept_cases FOLDER SETTING CASE... ; prints JSON of each case.

Graphs run as they were captured; in place of litz's cache there is a folder of FX graphs. What is looked at is what
capture and AOTAutograd's cache do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
import torch.utils.checkpoint
from torch import Tensor
from torch._dynamo.utils import counters

from litz.capture.aot import compile_with_aot
from litz.capture.decompositions import decompositions
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore


class Folder:
    """Graphs, pickled: for tests alone."""

    def __init__(self, root: Path) -> None:
        self.root, self.compiled, self.loaded = root, 0, 0

    def compile(self, graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        self.compiled += 1
        data = pickle.dumps(graph.module)
        key = hashlib.sha256(f"{graph.name}{graph.module.code}".encode()).hexdigest()
        (self.root / key).write_bytes(data)
        run = _runner(graph.module)
        run.key = key  # type: ignore[attr-defined]
        return run

    def load(self, key: str, name: str) -> Callable[[list[Any]], Sequence[Any]] | None:
        if not (self.root / key).exists():
            return None
        self.loaded += 1
        return _runner(pickle.loads((self.root / key).read_bytes()))


def _runner(module: torch.fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    def run(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        return module(*values)  # type: ignore[no-any-return]

    return run


def judged(fn: Callable[..., Any], inputs: Sequence[Any], compiled: Callable[..., Any], train: bool) -> float:
    """The largest distance from float64, relative to the largest number, of results, gradients and written inputs."""
    worst = 0.0
    double, single = copied(inputs, torch.float64), copied(inputs, None)
    for expected, found in zip(run(fn, double, train), run(compiled, single, train), strict=True):
        assert expected.shape == found.shape
        if expected.numel():
            worst = max(worst, float((found.double() - expected).abs().max() / (expected.abs().max() + 1e-30)))
    return worst


def copied(inputs: Sequence[Any], dtype: torch.dtype | None) -> list[Any]:
    """Inputs that lie in memory as these do, and share storages where these do."""
    storages: dict[int, Tensor] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        wanted = dtype if dtype is not None and x.is_floating_point() else x.dtype
        if x.untyped_storage()._cdata not in storages:
            whole = x.detach().as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
            storages[x.untyped_storage()._cdata] = whole.to(wanted, copy=True)
        storage = storages[x.untyped_storage()._cdata]
        return storage.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)

    return [copy(x) for x in inputs]


def run(fn: Callable[..., Any], inputs: Sequence[Any], train: bool) -> list[Tensor]:
    with torch.set_grad_enabled(train):
        results = fn(*inputs)
    results = [results] if isinstance(results, Tensor) else list(results)
    if train:
        loss = sum((item * item).sum() for item in results if item.requires_grad)
        loss.backward(retain_graph=RETAINED in MODES)
        if RETAINED in MODES:
            loss.backward()
    written = [x for x in inputs if isinstance(x, Tensor)]
    return [x.detach() for x in (*results, *written, *(x.grad for x in written if x.grad is not None))]


RETAINED, OFFLOADED = "retained", "offloaded"
MODES: set[str] = set()


def layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ w), (w.shape[1],))


def written(x: Tensor, state: Tensor) -> Tensor:
    state.mul_(0.5).add_(x.detach().sum(0))
    return x * state


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), (x * 2).unsqueeze(0)


def shared(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y.sum()


def other_layers(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(torch.nn.functional.silu(x @ w), (w.shape[1],))


@torch.library.custom_op("kept_cases::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def users_op(x: Tensor) -> Tensor:
    return twice(x) + 1


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(layers, x, w, use_reentrant=False)


def complex_numbers(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.complex(x, x * 2).conj() * 3)


def through_storage(x: Tensor) -> Tensor:
    return x.as_strided((2, 2), (2, 1), 1) * 2


def some(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    found = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.4
    return found.to(dtype).requires_grad_(grad)


def _halves() -> list[Tensor]:
    whole = some(8, 4)
    return [whole[:4], whole[2:6]]


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[Any]], bool, bool | None]] = {
    "inference": (layers, lambda: [some(4, 8), some(8, 8)], False, False),
    "wider": (layers, lambda: [some(4, 16), some(16, 8)], False, False),
    "transposed": (layers, lambda: [some(4, 8), some(8, 8).t()], False, False),
    "bfloat16": (layers, lambda: [some(4, 8, dtype=torch.bfloat16), some(8, 8, dtype=torch.bfloat16)], False, False),
    "other": (other_layers, lambda: [some(4, 8), some(8, 8)], False, False),
    "training": (layers, lambda: [some(4, 8, grad=True), some(8, 8, grad=True)], True, False),
    "dynamic": (layers, lambda: [some(5, 8, grad=True), some(8, 8, grad=True)], True, True),
    "longer": (layers, lambda: [some(9, 8, grad=True), some(8, 8, grad=True)], True, True),
    "empty": (layers, lambda: [some(0, 8, grad=True), some(8, 8, grad=True)], True, False),
    "written": (written, lambda: [some(4, 8, grad=True), some(8)], True, False),
    "views": (views, lambda: [some(4, 8, grad=True)], True, False),
    "shared": (shared, _halves, False, False),
    "users_op": (users_op, lambda: [some(4, 8)], False, False),
    "checkpointed": (checkpointed, lambda: [some(4, 8, grad=True), some(8, 8, grad=True)], True, False),
    "complex": (complex_numbers, lambda: [some(4, 8)], False, False),
    "through_storage": (through_storage, lambda: [some(4, 8)], False, False),
}
"""Name -> function, its inputs, whether it is trained, and torch.compile's `dynamic`."""


def main(folder: Path, cases: Sequence[str], setting: str) -> None:
    """Print what became of each case, as JSON. setting: of the store; "off" switches torch's cache off."""
    torch._functorch.config.enable_autograd_cache = setting != "off"
    found = {}
    for case in cases:
        name, *modes = case.split("+")
        MODES.clear()
        MODES.update(modes)
        fn, make, train, dynamic = CASES[name]
        torch._dynamo.reset()
        counters.clear()
        store = Folder(folder)
        backend = partial(
            compile_with_aot,
            compile_graph=store.compile,
            decompositions=decompositions(),
            store=GraphStore(setting, store.load),
        )
        compiled = torch.compile(fn, backend=backend, dynamic=dynamic)
        hooks = torch.autograd.graph.save_on_cpu() if OFFLOADED in modes else contextlib.nullcontext()
        with hooks:
            error = judged(fn, make(), compiled, train)
        hits = counters["aot_autograd"]["autograd_cache_hit"]
        found[case] = {"hits": hits, "compiled": store.compiled, "loaded": store.loaded, "error": error}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:], sys.argv[2])
