"""The parts of litz-clients that need no other program: keys of graphs, mutating operators, torchtitan's pass, and who
may import torch._inductor."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import litz
import litz_clients
from litz_clients import torchtitan
from litz_clients.bundle import packed
from litz_clients.same_graph import graph_key
from support.warm import run_warm

ROOT = Path(__file__).parents[2]
_library = torch.library.Library("test_clients_parts", "DEF")
_library.define("fill(Tensor(a!) out, Tensor x, float by) -> ()")
_library.define("both(Tensor(a!) out, Tensor x) -> Tensor")


@torch.library.impl(_library, "fill", "CompositeExplicitAutograd")
def _fill(out: torch.Tensor, x: torch.Tensor, by: float) -> None:
    out.add_(x, alpha=by)


@torch.library.impl(_library, "both", "CompositeExplicitAutograd")
def _both(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return out.add_(x) * 2


torch.library.register_fake("test_clients_parts::fill", lambda out, x, by: None, lib=_library)
torch.library.register_fake("test_clients_parts::both", lambda out, x: torch.empty_like(out), lib=_library)
ops = torch.ops.test_clients_parts


# --------------------------------------------------------------------------------------------------- keys of graphs


def key(function: Callable[..., Any], *inputs: Any) -> Any:
    return graph_key(fx.symbolic_trace(function), inputs)


def test_equal_graphs_have_equal_keys_whatever_their_names() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    assert key(lambda a, b: torch.sin(a) + b * 2, x, y) == key(lambda q, r: torch.sin(q) + r * 2, y, x) is not None


@pytest.mark.parametrize(
    "other",
    [lambda a: a * 1.0, lambda a: a * True, lambda a: a * 2, lambda a: a + 1, lambda a: a.mul(1), lambda a: (a * 1,)],
)
def test_other_graphs_have_other_keys(other: Callable[..., Any]) -> None:
    x = torch.ones(2)
    assert key(other, x) != key(lambda a: a * 1, x)


def test_the_sign_of_zero_and_nan_count() -> None:
    x, nan = torch.ones(2), float("nan")
    assert key(lambda a: a * 0.0, x) != key(lambda a: a * -0.0, x)
    assert key(lambda a: a * nan, x) == key(lambda a: a * nan, x)


def test_kinds_of_inputs_count() -> None:
    add, x = (lambda a, b: a + b), torch.ones(4, 4)
    others = [
        (x, x),
        (x, x.clone().double()),
        (x, torch.ones(4, 4).t()),
        (x, torch.ones(4, 5)[:, 1:]),
        (x, x.clone().requires_grad_()),
    ]
    keys = [key(add, *both) for both in ((x, x.clone()), *others)]
    assert len(set(keys)) == len(keys)


def test_a_graph_with_tensors_of_its_own_has_no_key() -> None:
    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.ones(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.w

    assert graph_key(fx.symbolic_trace(Holds()), [torch.ones(2)]) is None
    assert key(lambda a: a + 1, torch.ones(2).to_sparse()) is None


# ---------------------------------------------------------------------------------------------- mutating operators


def artifact_of(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """What litz makes of the function's graph, with calls wrapped as vLLM has them."""
    made: list[Any] = []

    def backend(gm: fx.GraphModule, examples: Any) -> Any:
        made.append(litz.standalone_compile(gm, examples))
        return made[-1]

    torch._dynamo.reset()
    with torch._inductor.config.patch(enable_auto_functionalized_v2=False), torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return made[0]


def test_a_mutating_operator_writes_into_copies_that_are_read_again() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * 3
        before = z + 1  # reads z before z is written
        ops.fill(z, y + 1, 2.0)
        ops.fill(y, z, 0.5)  # an input
        ops.fill(z, z.clone(), 1.0)
        return before, z * 2

    x, y = torch.randn(5, 7), torch.randn(5, 7)
    run, mine, its = artifact_of(function, x.clone(), y.clone()), y.clone(), y.clone()
    again = litz.deserialize(run.serialize())
    for compiled in (run, again):
        mine, its = y.clone(), y.clone()
        expected, found = function(x, its), compiled(x, mine)
        for one, other in zip((*expected, its), (*found, mine), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


def test_an_operator_that_also_returns_stays_torchs_call() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * 3
        r = ops.both(z, y)
        return z + 1, r + 1

    x, y = torch.randn(5, 7), torch.randn(5, 7)
    for one, other in zip(function(x, y), artifact_of(function, x, y)(x, y), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- torchtitan


def train_step(model: torch.nn.Module) -> Callable[..., Any]:
    names = [name for name, _ in model.named_parameters()]

    def step(*inputs: torch.Tensor) -> Any:
        *params, x, y = inputs
        params = [p.detach().requires_grad_() for p in params]
        out = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,))
        loss = torch.nn.functional.cross_entropy(out, y)
        return [loss, *torch.autograd.grad(loss, params), None]

    return step


def test_torchtitans_pass_compiles_a_train_step_with_its_backward() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.RMSNorm(16), torch.nn.Linear(16, 4))
    params, x, y = [p.detach() for p in model.parameters()], torch.randn(6, 8), torch.randint(4, (6,))
    step = train_step(model)
    gm = make_fx(step, tracing_mode="fake")(*params, x, y)
    made = torchtitan.litz_pass(gm, [*params, x, y])
    assert isinstance(made, fx.GraphModule)
    assert [node.op for node in made.graph.nodes].count("call_module") == 1
    exact = step(*(p.double() for p in params), x.double(), y)
    for run in (made.litz.run, litz.deserialize(made.litz.run.serialize())):
        made.litz.run = run
        found = made(*params, x, y)
        assert found[-1] is None
        for one, other in zip(exact[:-1], found[:-1], strict=True):
            torch.testing.assert_close(other.double(), one, rtol=1e-5, atol=1e-6)


def test_the_pipeline_ends_with_litzs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    registry: dict[str, Any] = {}

    def compile_time_passes(traced: Any, config: Any, **known: Any) -> list[Any]:
        asked.append(known)
        return [len]

    contents = {
        "registry": {"register_pass_pipeline": lambda name: lambda made: registry.setdefault(name, made)},
        "passes": {"compile_time_passes": compile_time_passes},
    }
    for name in ("torchtitan", "torchtitan.experiments", "torchtitan.experiments.graph_trainer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for last, content in contents.items():
        module = ModuleType(last)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, f"torchtitan.experiments.graph_trainer.{last}", module)
    torchtitan.register()
    assert registry["litz"](None, None) == [len, torchtitan.litz_pass]
    assert asked == [{"use_cudagraph": False, "parallel_dims": None, "include_inductor": False}]


# ---------------------------------------------------------------------------------------------------------- imports


def test_one_module_of_all_packages_imports_inductor() -> None:
    packages = [ROOT / "core/src", ROOT / "plugins/src", *ROOT.glob("plugins_*/src")]
    files = [file for folder in packages for file in folder.rglob("*.py")]
    found = [file for file in files if re.search(r"^\s*(import|from) torch\._inductor", file.read_text(), re.M)]
    assert found == [Path(str(litz_clients.__file__)).parent / "inductor.py"]


def test_the_package_imports_no_program_and_no_compiler() -> None:
    program = (
        "import sys, litz_clients, litz_clients.plugin, litz_clients.vllm, litz_clients.torchtitan\n"
        "names = 'vllm', 'torchtitan', 'litz_aot'\n"
        "heavy = [m for m in sys.modules if m.partition('.')[0] in names or m.startswith('litz.driver')]\n"
        "assert not heavy, heavy\n"
    )
    result = run_warm(["-c", program])
    assert not result.returncode, result.stderr


def test_what_is_packed_names_one_class_and_holds_bytes() -> None:
    import pickletools

    names = [
        arg
        for op, arg, _ in pickletools.genops(packed(b"data"))
        if op.name in ("SHORT_BINUNICODE", "GLOBAL", "STACK_GLOBAL")
    ]
    assert {"litz_clients.bundle", "Entry"} <= set(names) and not {"builtins", "os"} & set(names)
