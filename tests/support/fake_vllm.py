"""vLLM's compile flow by its shape, for tests without vLLM: it is no copy of vLLM's code, and vLLM itself is tried by
hand (docs/use/clients.md has the runs).

`installed` puts modules under vLLM's names for as long as a test runs. `Engine` is a backend that does with a compiler
what vLLM 0.32 does: it splits dynamo's graph at attention ops, hands each piece over once for each range of sizes,
keeps the handles in a file, drops all guards, and calls what the compiler made with whatever sizes come.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.split_module import split_module


@dataclass(frozen=True)
class Range:
    """Sizes from start to end, both included."""

    start: int
    end: int

    def is_single_size(self) -> bool:
        return self.start == self.end


class CompilerInterface:
    name: str


class Pass:
    """A custom pass with an identity."""

    def __init__(self, run: Callable[[fx.Graph], None], identity: str) -> None:
        self.run, self.identity = run, identity

    def __call__(self, graph: fx.Graph) -> None:
        self.run(graph)

    def uuid(self) -> str:
        return self.identity


class PostGradPassManager:
    """Passes, and a last step that makes the graph mutate."""

    def __init__(self) -> None:
        self.passes: list[Any] = []
        self.fix_functionalization: Any = None

    def configure(self, config: Any) -> None:
        self.passes = list(config.passes)
        self.fix_functionalization = Pass(_mutate, "mutate")

    def __call__(self, graph: fx.Graph) -> None:
        for one in (*self.passes, self.fix_functionalization):
            one(graph)

    def uuid(self) -> str:
        return str([one.uuid() for one in (*self.passes, self.fix_functionalization)])


def _mutate(graph: fx.Graph) -> None:
    raise AssertionError("litz takes functional graphs")


class OwnPlatform:
    """vLLM's platform of a CPU, which turns mode 3 into mode 2."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        vllm_config.seen.append("defaults")

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: Any) -> str:
        return "native" if vllm_config.compilation_config.backend == "inductor" else "kernels"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        config = vllm_config.compilation_config
        if config.mode is not None and config.mode.name == "VLLM_COMPILE":
            config.mode, config.backend = SimpleNamespace(name="DYNAMO_TRACE_ONCE"), "inductor"
            config.ir_enable_torch_wrap = False


def installed(monkeypatch: pytest.MonkeyPatch, plugins: Sequence[str] | None = None, packed: bool = False) -> None:
    """Puts the modules in place. plugins: VLLM_PLUGINS. packed: does vLLM keep callables in an artifact of its own?"""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.envs": {"VLLM_PLUGINS": plugins, "VLLM_USE_MEGA_AOT_ARTIFACT": packed},
        "vllm.compilation": {},
        "vllm.compilation.compiler_interface": {"CompilerInterface": CompilerInterface},
        "vllm.compilation.passes": {},
        "vllm.compilation.passes.inductor_pass": {"InductorPass": object},
        "vllm.compilation.passes.pass_manager": {"PostGradPassManager": PostGradPassManager},
        "vllm.platforms": {"builtin_platform_plugins": {"cuda": lambda: None, "cpu": lambda: "own"}},
        "vllm.utils": {},
        "vllm.utils.import_utils": {"resolve_obj_by_qualname": {"own": OwnPlatform}.__getitem__},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    for name in ("compiler", "pass_manager", "platform"):
        monkeypatch.delitem(sys.modules, f"litz_clients.vllm.{name}", raising=False)


@dataclass
class Engine:
    """The flow. splitting: ops that stay out of pieces. made: the callables by piece and range."""

    compiler: Any
    folder: Path
    splitting: Sequence[Any]
    ranges: Sequence[Range]
    config: dict[str, Any] = field(default_factory=dict)
    made: dict[tuple[str, Range], Any] = field(default_factory=dict)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.compiler.initialize_cache(str(self.folder), False, "")
        handles = self._handles()
        split, pieces = self._split(gm)
        for index, name in enumerate(pieces):
            piece = getattr(split, name)
            fakes = [node.meta["example_value"] for node in piece.graph.find_nodes(op="placeholder")]
            for one in self.ranges:
                inputs = concrete(fakes, one.start) if one.is_single_size() else fakes
                if handle := handles.get((one.start, one.end, index)):
                    self.made[name, one] = self.compiler.load(handle, piece, inputs, index, one)
                    continue
                key = f"artifact_{one.start}_{one.end}_{index}"
                self.made[name, one], handle = self.compiler.compile(piece, inputs, self.config, one, key)
                handles[one.start, one.end, index] = handle
            setattr(split, name, _Dispatch(name, self, [isinstance(fake, torch.SymInt) for fake in fakes].index(True)))
        (self.folder / "handles.py").write_text(repr(handles))
        return split

    def _handles(self) -> dict[tuple[int, int, int], Any]:
        file = self.folder / "handles.py"
        found: dict[Any, Any] = ast.literal_eval(file.read_text()) if file.exists() else {}
        assert all(isinstance(text, str) for handle in found.values() for text in handle or ())
        return found

    def _split(self, gm: fx.GraphModule) -> tuple[fx.GraphModule, list[str]]:
        number, places, apart = 0, {}, set()
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if node.target is operator.getitem and node.args[0] in places:
                places[node] = places[node.args[0]]
                continue
            if node.target in self.splitting:
                number += 1
                apart.add(number)
                places[node] = number
                number += 1
            else:
                places[node] = number
        split = split_module(gm, None, places.__getitem__, keep_original_order=True, tuple_return=True)
        names = [name for name, _ in split.named_children() if int(name.removeprefix("submod_")) not in apart]
        return split, names


class _Dispatch(torch.nn.Module):
    def __init__(self, name: str, engine: Engine, symbol: int) -> None:
        super().__init__()
        self.name, self.engine, self.symbol = name, engine, symbol

    def forward(self, *inputs: Any) -> Any:
        size = inputs[self.symbol]
        fitting = [one for one in self.engine.ranges if one.start <= size <= one.end]
        return self.engine.made[self.name, min(fitting, key=lambda one: one.end - one.start)](*inputs)


def concrete(fakes: Sequence[Any], size: int) -> list[Any]:
    """Fake inputs of a mode of their own, every symbol replaced by `size`."""
    number = lambda value: (
        int(value.node.expr.subs({s: size for s in value.node.expr.free_symbols}))
        if isinstance(value, torch.SymInt)
        else value
    )
    with FakeTensorMode(shape_env=ShapeEnv()):
        return [
            torch.empty_strided([*map(number, fake.shape)], [*map(number, fake.stride())], dtype=fake.dtype)
            if isinstance(fake, torch.Tensor)
            else number(fake)
            for fake in fakes
        ]
