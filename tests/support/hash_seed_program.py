"""Compiles a few programs in a cache folder, and prints what came of them as JSON: keys, texts, results.

`PYTHONHASHSEED=3 python hash_seed_program.py FOLDER NAME ...`: Python's hashes of strings, and so the order of sets,
follow the seed; nothing that litz makes may.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # of the process whose copy this is: nothing here runs in the interpreter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.codegen.wrapper import generate_wrapper
from litz.driver.code import generate
from litz.driver.compiler import make_compiler
from litz.pipeline import plan_schedule, schedule_only
from litz_autotune import kept, results
from litz_autotune.duel import Duel
from support.fake_gpu import FakeGpu, FakeRunner
from support.retarget import cuda_schedules

Case = tuple[Callable[..., Any], list[torch.Tensor], bool | None]


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)


def _images() -> torch.nn.Module:
    torch.manual_seed(0)
    parts = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*parts, torch.nn.Conv2d(8, 16, 3), torch.nn.Flatten(), torch.nn.Linear(576, 5))


def _blocks() -> torch.nn.Module:
    """Convolutions of several kinds in a row and side by side, for which a layout is chosen (litz-layout)."""
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.SiLU())
    return torch.nn.Sequential(wide, torch.nn.Conv2d(32, 32, 3, padding=1, groups=32), torch.nn.Conv2d(32, 8, 1))


def _for_ranks() -> list[str]:
    """Orders and buckets of collectives for 8 ranks (litz-collectives), on CUDA tensors that need not be there."""
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            values = [torch.empty(256 * n, 256, device="cuda", dtype=torch.bfloat16) for n in range(1, 7)]
        compiler = make_compiler(None, {})
        texts = []
        for schedule in schedule_only(_step_of_a_rank, values, None):
            plan = plan_schedule(schedule, compiler)
            texts += [str(schedule), str(plan.steps)]
        return texts
    finally:
        dist.destroy_process_group()


def _step_of_a_rank(*values: torch.Tensor) -> list[torch.Tensor]:
    """Each gradient is reduced, each weight gathered, and products lie between them."""
    ops, made = torch.ops._c10d_functional, []
    for value in values:
        reduced = ops.wait_tensor(ops.all_reduce(value * 2, "sum", "0"))
        gathered = ops.wait_tensor(ops.all_gather_into_tensor(value, 8, "0"))
        made.append((gathered @ reduced.t()).relu())
    return made


def _trained(make: Callable[[], torch.nn.Module]) -> Callable[..., Any]:
    model = make()

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    return step


def _time(text: str) -> float:
    """µs that follow a text: times of one process are those of another if their texts are the same."""
    return 50.0 + zlib.crc32(text.encode()) % 1000 / 10


class _ByText(FakeRunner):
    """Races by the names of their entrants, as by its base class, and duels by what their schedules say."""

    def run(self, requests: Sequence[Any], timeout: float = 0.0) -> list[Any]:
        if not all(isinstance(request, Duel) for request in requests):
            return super().run(requests, timeout)
        self.raced += [(str(request.first), str(request.second)) for request in requests]
        return [([_time(str(duel.first))] * 12, [_time(str(duel.second))] * 12) for duel in requests]


def _layers(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A product with users, and decisions that are close: two readers of one row, a reduction."""
    row = (torch.erf(torch.log1p(x.exp())).tanh() + torch.sin(x).exp()).atan()
    return F.gelu(F.linear(x, w, b)), w * row[0], torch.softmax(row, -1)


def _tuned(folder: Path) -> list[str]:
    """What autotune (litz-autotune) measures of a graph for a GPU that need not be there, and what it makes of that:
    who competes in which order, and the texts that run. Its records lie in the folder."""
    more: dict[str, Any] = {"autotune.kernels": True, "autotune.budget_s": 1e6, "threads": 1}
    gpu = FakeGpu(folder, _time, **more)
    gpu.runner = _ByText(_time)
    with (
        mock.patch("litz_autotune.decisions.can_measure", lambda device: True),
        mock.patch("litz_autotune.search.free_bytes", lambda device: 1 << 40),
    ):
        gpu.compile(_layers)(_random(64, 128), _random(96, 128), _random(96))
    return [gpu.code, *map(str, gpu.schedules), *(name for names in gpu.runner.raced for name in names)]


CASES: dict[str, Callable[[], Case]] = {
    "pointwise": lambda: (
        lambda x, y: ((x.sin() * y + 1).relu(), x.exp().sum(1), (x > y).float().mean()),
        [_random(33, 65), _random(33, 65)],
        None,
    ),
    "softmax": lambda: (lambda x, w: F.softmax(x, -1) @ w, [_random(24, 40), _random(40, 16)], None),
    "sizes": lambda: (lambda x: (x.cumsum(0), x[1:] - x[:-1], F.layer_norm(x, x.shape[1:])), [_random(9, 12)], True),
    "scatter": lambda: (
        lambda x: torch.zeros(7, 12).index_add(0, torch.arange(9) % 7, x).topk(3)[0],
        [_random(9, 12)],
        None,
    ),
    "attention": lambda: (_layer().eval(), [_random(2, 7, 32)], None),
    "training": lambda: (_trained(_layer), [_random(2, 7, 32).requires_grad_()], None),
    "layouts": lambda: (_trained(_blocks), [_random(2, 16, 24, 24).requires_grad_()], None),
    "images": lambda: (_trained(_images), [_random(4, 3, 16, 16).requires_grad_()], None),
}


RECORDS = (results.FILE, kept.FILE)
"""Files of autotune's in the cache: measurements, and what became of decisions. Their folders' names are their keys."""


def _flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [item for part in value for item in _flat(part)]


def _run(case: Case, options: dict[str, Any]) -> list[str]:
    """The bits of all results and gradients."""
    function, inputs, dynamic = case
    results = _flat(torch.compile(function, backend="litz", options=options, dynamic=dynamic)(*inputs))
    wanted = [value for value in inputs if value.requires_grad]
    found = [*results, *(torch.autograd.grad(results[0], wanted) if wanted else ())]
    return [hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:16] for value in found]


def _for_cuda(case: Case) -> list[str]:
    """Wrappers and kernels for a GPU that need not be there."""
    function, inputs, dynamic = case
    compiler = make_compiler(None, {})
    texts = []
    for schedule in cuda_schedules(
        lambda backend: torch.compile(function, backend=backend, dynamic=dynamic)(*inputs), compiler
    ):
        plan = plan_schedule(schedule, compiler)
        sources = generate(plan, compiler)
        texts += [str(schedule), generate_wrapper(plan, sources).text, *(source.text for source in sources.values())]
    return texts


def main(folder: Path, names: list[str]) -> None:
    """Prints a JSON object: files of the cache by name, with their sums; bits of results; texts for CUDA; "hash" tells
    the seed from others."""
    found: dict[str, Any] = {"hash": hash("the seed")}
    for name in names:
        if name not in CASES:
            continue
        torch._dynamo.reset()
        found[name] = _run(CASES[name](), {"cache_dir": str(folder), "cpp.qualify": False})
        torch._dynamo.reset()
        found[f"{name} on cuda"] = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in _for_cuda(CASES[name]())]
    others = {"collectives": _for_ranks, "tuned": lambda: _tuned(folder)}
    for name in others:
        if name in names:
            found[name] = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in others[name]()]
    for path in sorted(folder.rglob("*")):
        if (path.suffix in (".py", ".cpp") or path.name in RECORDS) and path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [*CASES, "collectives", "tuned"])
