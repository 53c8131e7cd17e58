"""Compiles a few programs in a cache folder, and prints what came of them as JSON: keys, texts, results.

`PYTHONHASHSEED=3 python hash_seed_program.py FOLDER NAME ...`: Python's hashes of strings, and so the order of sets,
follow the seed; nothing that litz makes may.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from litz.codegen.wrapper import generate_wrapper
from litz.driver.code import generate
from litz.driver.compiler import make_compiler
from litz.pipeline import plan_schedule
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


def _trained(make: Callable[[], torch.nn.Module]) -> Callable[..., Any]:
    model = make()

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    return step


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
    "images": lambda: (_trained(_images), [_random(4, 3, 16, 16).requires_grad_()], None),
}


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
    """Prints a JSON object: files of the cache by name, with their sums; bits of results; texts for CUDA."""
    found: dict[str, Any] = {}
    for name in names:
        torch._dynamo.reset()
        found[name] = _run(CASES[name](), {"cache_dir": str(folder), "cpp.qualify": False})
        torch._dynamo.reset()
        found[f"{name} on cuda"] = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in _for_cuda(CASES[name]())]
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".cpp") and path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
