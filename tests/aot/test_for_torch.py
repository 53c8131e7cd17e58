"""torch's own functions that save what a backend compiled, with litz: `aot_compile`, `caching_precompile`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from litz.capture import torch_api
from litz_aot import for_torch
from litz_aot.errors import ArtifactError
from support.warm import run_warm

MODEL = """
import sys, time, torch
from torch._dynamo.utils import counters
folder, train = sys.argv[1], sys.argv[2] == "train"
def f(x, w):
    y = torch.softmax(x @ w, 1) * 2
    return y, y.t(), x.view(-1)
torch.manual_seed(0)
x, w = torch.randn(8, 16), torch.randn(16, 4).requires_grad_(train)
def results(run):
    w.grad = None
    found = list(run(x, w))
    if train:
        found[0].pow(3).sum().backward()
        found.append(w.grad)
    return [one.detach().clone() for one in found]
"""
SAVE = """
compiled = torch.compile(f, fullgraph=True, backend="litz").aot_compile(((x, w), {}))
torch.save(results(compiled), f"{folder}/expected")
compiled.save_compiled_function(f"{folder}/function")
for one, other in zip(results(compiled), results(f)):
    torch.testing.assert_close(one, other)
"""
LOAD = """
with open(f"{folder}/function", "rb") as file:
    compiled = torch.compiler.load_compiled_function(file)
found = results(compiled)
assert all(map(torch.equal, found, torch.load(f"{folder}/expected")))
assert "litz.pipeline" not in sys.modules and "litz.lower" not in sys.modules
"""
PRECOMPILE = """
torch._dynamo.config.caching_precompile = True
"""
KEEP = """
torch.save(results(torch.compile(f, backend="litz")), f"{folder}/expected")
data, info = torch.compiler.save_cache_artifacts()
assert info.artifacts["precompile"], info
open(f"{folder}/artifacts", "wb").write(data)
"""
FIND = """
import litz
litz.load_cache_artifacts(open(f"{folder}/artifacts", "rb").read())
compiled = torch.compile(f, backend="litz")
found = results(compiled)
assert counters["dynamo_cache"]["dynamo_cache_hit"] == 1, counters
assert not counters["stats"], "dynamo traced"
assert all(map(torch.equal, found, torch.load(f"{folder}/expected")))
assert "litz.pipeline" not in sys.modules and "litz.lower" not in sys.modules
"""
enabled = hasattr(torch._dynamo.config, "caching_precompile") and torch.__version__ >= "2.13"
since = pytest.mark.skipif(not enabled, reason="torch before 2.13 asks otherwise")


def both(tmp_path: Path, first: str, then: str) -> None:
    """Two processes, one after the other, with caches of their own. The program is a file, as torch looks for it."""
    lines = [MODEL, 'if sys.argv[3] == "first":', _in(first), "else:", _in(then)]
    (tmp_path / "program.py").write_text("\n".join(lines))
    for name in ("first", "then"):
        own = {"LITZ_CACHE_DIR": str(tmp_path / name), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"torch {name}")}
        line = [str(tmp_path / "program.py"), str(tmp_path), "train", name]
        done = run_warm(line, {**os.environ, **own}, imported=name == "first")
        assert done.returncode == 0, done.stderr


def _in(program: str) -> str:
    return "".join(f"    {line}\n" for line in program.strip().splitlines())


@since
def test_a_function_compiled_ahead_runs_in_another_process(tmp_path: Path) -> None:
    both(tmp_path, SAVE, LOAD)


@since
def test_a_precompiled_function_is_found_in_another_process(tmp_path: Path) -> None:
    both(tmp_path, PRECOMPILE + KEEP, PRECOMPILE + FIND)


def test_torch_is_given_what_it_asks_for() -> None:
    from torch._dynamo.aot_compile_types import SerializableCallable

    asked: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 0) + 1

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        from litz.backend import litz

        asked.append(torch_api.is_saved_by_torch())
        with torch._functorch.config.patch(bundled_autograd_cache=True):
            asked.append(torch_api.is_saved_by_torch())
            found = litz(gm, inputs)
        assert isinstance(found, SerializableCallable)
        again = for_torch.Compiled.deserialize_compile_artifacts(for_torch.Compiled.serialize_compile_artifacts(found))
        assert type(again) is for_torch.Compiled
        data = for_torch.Compiled.serialize_compile_artifacts(again)
        assert data == for_torch.Compiled.serialize_compile_artifacts(found)
        with pytest.raises(ArtifactError):
            for_torch.Precompiled("key", data[:-1]).after_deserialization()
        return again

    torch._dynamo.reset()
    x = torch.randn(8, 4)
    torch.testing.assert_close(torch.compile(f, backend=backend)(x), f(x))
    assert asked == [False, True]
