"""A training step of equal layers, as on a GPU that is not there; prints JSON of what the process did. A process of its
own: python warm_gpu.py. The graphs are the CPU's, made out to be CUDA's. Triton is not run, the driver is a stand-in,
kernels do nothing, and the library computes on the CPU: all that finds and loads kernels is real.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

LAYERS = 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


ALIKE = """
def layer(x, weight):
    return x + torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (16,)) @ weight)
"""


def alike() -> Any:
    """A function that dynamo compiles by itself each time: its code is another's, and equal."""
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(ALIKE, "layer.py", "exec"), scope)
    return scope["layer"]


class Driver:
    """Of CUDA: counts calls, and succeeds."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            return 0

        return call


def stand_in(driver: Driver) -> None:
    """Puts the driver, and what is as if there were a device, in place."""
    import litz.capture.aot
    import litz.runtime.graph_code
    from litz.targets.triton import build, compile, cuda_driver, workers
    from support.to_cuda import to_cuda

    def compile_job(job: Any, folder: Path) -> str:
        (folder / compile.CUBIN).write_bytes(job.text.encode())
        info = {"name": job.symbol, "threads": 128, "shared": 0, "parameters": len(job.settings["pointers"])}
        (folder / compile.INFO).write_text(json.dumps(info), encoding="utf-8")
        return ""

    make_graph, load_wrapper = litz.capture.aot.make_graph, litz.runtime.graph_code.load_wrapper

    def load(text: str, path: Path, namespace: dict[str, Any]) -> Any:
        here = {**namespace, "_empty_cuda": namespace["_empty_cpu"]}
        return load_wrapper(text.replace('torch.device("cuda:0")', 'torch.device("cpu")'), path, here)

    torch.cuda.current_device = lambda: 0  # type: ignore[assignment]
    torch.cuda.init = lambda: None  # type: ignore[assignment]
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[assignment,misc]
    cuda_driver._driver = lambda: driver  # type: ignore[assignment]
    launches = {"make_launch", "make_fixed_launch"}
    for name in launches:
        setattr(cuda_driver, name, lambda *arguments: lambda *values: None)
    workers.compiling = lambda options: compile_job
    build.workers.compiling = workers.compiling
    litz.capture.aot.make_graph = lambda *arguments, **more: to_cuda(make_graph(*arguments, **more))
    litz.runtime.graph_code.load_wrapper = load


def main() -> dict[str, Any]:
    driver, opened, parsed, hashed = Driver(), Counter[str](), Counter[str](), Counter[str]()
    from litz.options import make_options

    root = str(make_options().cache_dir)
    before = set(sys.modules)
    torch.manual_seed(0)
    run = torch.compile(nn.Sequential(*(Layer() for _ in range(LAYERS))), backend="litz")
    stand_in(driver)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(root):
            opened[arguments[0].removeprefix(root)] += 1

    loads, digest = json.loads, hashlib.file_digest
    sys.addaudithook(heard)

    def read(text: Any, **more: Any) -> Any:
        parsed["json"] += 1
        return loads(text, **more)

    def summed(file: Any, name: Any) -> Any:
        hashed["files"] += 1
        return digest(file, name)

    with mock.patch.object(json, "loads", read), mock.patch.object(hashlib, "file_digest", summed):
        found = run(torch.ones(4, 16))
        forward = dict(driver.calls)
        found.sum().backward()
        counts: dict[str, Any] = {"hits": torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]}
        counts |= {"opened": dict(opened), "calls": dict(driver.calls), "json": parsed["json"], "sums": hashed["files"]}
        counts["graphs"] = sorted(path.parent.name for path in Path(root).glob("graph/*/graph.json"))
        counts["kernels"] = len(list(Path(root).glob("triton/*/kernel.cubin")))
        weight = torch.ones(16, 16, requires_grad=True)
        several, after = [], []
        for _ in range(3):
            several.append(torch.compile(alike(), backend="litz"))  # code is shared as long as a graph has it
            several[-1](torch.ones(4, 16), weight).sum().backward()
            after.append([driver.calls["cuModuleLoadData"], sum(opened.values())])
    return {
        "forward": forward,
        **counts,
        "alike": after,
        "modules": sorted(set(sys.modules) - before),
    }


if __name__ == "__main__":
    builtins.print(json.dumps(main()))
