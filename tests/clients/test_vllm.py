"""litz as vLLM's compiler, in a flow of vLLM's shape (`support.fake_vllm`): CI's environment has no vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.standalone_compile import AOTCompiledArtifact

import litz
from litz_clients.vllm import COMPILER, PLATFORM, platform
from support import fake_vllm
from support.fake_vllm import Engine, Pass, Range

LAYERS = 6
_library = torch.library.Library("test_clients", "DEF")
_library.define("attend(Tensor q, Tensor k, Tensor v, Tensor(a!) out) -> ()")
_library.define("gate(Tensor(a!) out, Tensor x) -> ()")


@torch.library.impl(_library, "attend", "CompositeExplicitAutograd")
def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.softmax(q @ k.mT, -1) @ v)


@torch.library.impl(_library, "gate", "CompositeExplicitAutograd")
def _gate(out: torch.Tensor, x: torch.Tensor) -> None:
    left, right = x.chunk(2, -1)
    out.copy_(nn.functional.silu(left) * right)


for _name in ("attend", "gate"):
    torch.library.register_fake(f"test_clients::{_name}", lambda *args: None, lib=_library)


class Layer(nn.Module):
    """As a decoder's: mutating attention and activation ops, as vLLM has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.up = nn.RMSNorm(16), nn.Linear(16, 48), nn.Linear(16, 64)
        self.out, self.down = nn.Linear(16, 16), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        attended = torch.empty_like(q)
        torch.ops.test_clients.attend(q, k, v, attended)
        x = x + self.out(attended)
        up = self.up(x)
        gated = torch.empty(up.shape[0], 32, dtype=x.dtype)
        torch.ops.test_clients.gate(gated, up)
        return x + self.down(gated)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.head = (
            nn.Embedding(20, 16),
            nn.ModuleList(Layer() for _ in range(LAYERS)),
            nn.Linear(16, 20),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture
def model() -> Iterator[Model]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Model().eval()


def flow(folder: Path, ranges: tuple[Range, ...] = (Range(1, 64),), **config: Any) -> Engine:
    """vLLM's configuration of AOTAutograd, a fresh compiler, and a cache folder."""
    from litz_clients.vllm.compiler import LitzCompiler

    torch._dynamo.reset()
    folder.mkdir(exist_ok=True)
    known = {"enable_auto_functionalized_v2": False, **config}
    return Engine(LitzCompiler(), folder, [torch.ops.test_clients.attend], ranges, known)


def compiled(model: nn.Module, engine: Engine) -> Any:
    run = torch.compile(
        model,
        backend=engine,
        fullgraph=True,
        dynamic=False,
        options={"guard_filter_fn": lambda all: [False] * len(all)},
    )
    tokens = torch.arange(8)
    torch._dynamo.mark_dynamic(tokens, 0)
    run(tokens)
    return run


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Lists the compiles inside."""
    found: list[Any] = []
    real = litz.standalone_compile
    with monkeypatch.context() as patched:
        patched.setattr(litz, "standalone_compile", lambda *a, **k: found.append(k) or real(*a, **k), raising=False)
        yield found


def same_tokens(model: nn.Module, run: Any, sizes: tuple[int, ...] = (8, 1, 4, 33)) -> bool:
    """Are results for these sizes eager's, to rounding, and the tokens the same?"""
    for size in sizes:
        tokens = torch.arange(size) % 20
        eager, found = model(tokens), run(tokens)
        exact = model.double()(tokens)
        model.float()
        assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-6
        if not torch.equal(eager.argmax(-1), found.argmax(-1)):
            return False
    return True


def test_a_models_layers_compile_once_and_load_in_another_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model
) -> None:
    fake_vllm.installed(monkeypatch)
    ranges = (Range(1, 64), Range(4, 4))
    with counted(monkeypatch) as compiles:
        run = compiled(model, flow(tmp_path / "cache", ranges))
    assert [one["dynamic_shapes"] for one in compiles].count("from_graph") == 3  # first, between, last
    assert len(compiles) == 6 and same_tokens(model, run)

    with counted(monkeypatch) as compiles:  # a fresh engine, whose file names what the first has saved
        engine = flow(tmp_path / "cache", ranges)
        run = compiled(model, engine)
    assert not compiles and same_tokens(model, run)
    assert len({id(piece.run) for piece in engine.made.values()}) == 6  # equal layers load once, too


def test_torchs_loader_reads_what_vllm_packs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> None:
    fake_vllm.installed(monkeypatch, packed=True)
    engine = flow(tmp_path / "cache")
    run = compiled(model, engine)
    assert not [*(tmp_path / "cache").glob("artifact_*")]
    packed = {name: piece.serialize() for name, piece in engine.made.items()}
    assert len(set(packed.values())) == 3
    for name, data in packed.items():
        engine.made[name] = AOTCompiledArtifact.deserialize(data)
    assert same_tokens(model, run)


def test_custom_passes_run_and_are_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model
) -> None:
    fake_vllm.installed(monkeypatch)
    from litz_clients.vllm.pass_manager import LitzPassManager

    seen: list[str] = []

    def halve(graph: torch.fx.Graph) -> None:
        seen.append("graph")
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.rsqrt.default):
            with graph.inserting_after(node):
                half = graph.call_function(torch.ops.aten.mul.Tensor, (node, 0.5))
            half.meta = dict(node.meta)
            node.replace_all_uses_with(half, delete_user_cb=lambda user, half=half: user is not half)

    def manager(*passes: Any) -> LitzPassManager:
        made = LitzPassManager()
        made.configure(SimpleNamespace(passes=passes, compilation_config=SimpleNamespace(backend=COMPILER)))
        return made

    tokens = torch.arange(8)
    plain = compiled(model, flow(tmp_path / "plain", post_grad_custom_post_pass=manager()))(tokens)
    assert (plain - model(tokens)).abs().max() < 1e-5
    changed = compiled(model, flow(tmp_path / "one", post_grad_custom_post_pass=manager(Pass(halve, "halve"))))(tokens)
    assert len(seen) == 3 and (plain - changed).abs().max() > 1e-3  # not what the graph cache has of the graph without
    for layer in model.layers:
        layer.norm.weight.mul_(0.5)
    assert (changed - model(tokens)).abs().max() < 1e-5

    with pytest.raises(Exception, match="has no uuid"):
        compiled(model, flow(tmp_path / "two", post_grad_custom_post_pass=halve))


def test_a_pass_runs_on_the_captured_graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> None:
    fake_vllm.installed(monkeypatch)
    seen: list[bool] = []
    look = Pass(
        lambda graph: seen.append(bool(graph.find_nodes(op="call_function", target=torch.ops.test_clients.gate))),
        "look",
    )
    compiled(model, flow(tmp_path / "cache", pre_grad_custom_pass=look))
    assert seen == [False, True, True]


@pytest.mark.nightly
def test_a_damaged_artifact_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Model) -> None:
    fake_vllm.installed(monkeypatch)
    compiled(model, flow(tmp_path / "cache"))
    for file in (tmp_path / "cache").glob("artifact_*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(Exception, match=r"damaged|digest|hash"):
        compiled(model, flow(tmp_path / "cache"))


def test_only_vllm_plugins_chooses_litz(monkeypatch: pytest.MonkeyPatch) -> None:
    for plugins, chosen in ((None, None), ([], None), (["other"], None), (["other", "litz"], PLATFORM)):
        fake_vllm.installed(monkeypatch, plugins)
        assert platform() == chosen


def test_the_platform_is_vllms_with_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.installed(monkeypatch, ["litz"])
    from litz_clients.vllm.platform import LitzPlatform

    def config(backend: str, mode: str | None = "VLLM_COMPILE", **known: Any) -> Any:
        given = SimpleNamespace(name=mode) if mode else None
        fields = {"custom_ops": [], "ir_enable_torch_wrap": None, "compile_sizes": None, **known}
        compilation = SimpleNamespace(backend=backend, mode=given, **fields)
        return SimpleNamespace(compilation_config=compilation, optimization_level=2, seen=[], additional_config={})

    assert issubclass(LitzPlatform, fake_vllm.OwnPlatform) and LitzPlatform.get_compile_backend() == COMPILER
    mine = config(COMPILER, None)
    LitzPlatform.apply_config_platform_defaults(mine)
    assert mine.seen == ["defaults"] and mine.compilation_config.custom_ops == ["none"]
    assert mine.compilation_config.ir_enable_torch_wrap and LitzPlatform.get_default_ir_op_priority(mine) == "native"
    assert mine.compilation_config.backend == COMPILER

    mine = config(COMPILER, custom_ops=["all"], ir_enable_torch_wrap=True)
    LitzPlatform.apply_config_platform_defaults(mine)
    LitzPlatform.check_and_update_config(mine)
    found = mine.compilation_config
    assert (found.backend, found.mode.name, found.custom_ops) == (COMPILER, "VLLM_COMPILE", ["all"])
    assert found.compile_sizes == [] and found.ir_enable_torch_wrap and len(mine.additional_config["litz"]) == 32

    other = config("eager", "NONE")
    LitzPlatform.apply_config_platform_defaults(other)
    LitzPlatform.check_and_update_config(other)
    assert not other.compilation_config.custom_ops and not other.additional_config
    assert LitzPlatform.get_default_ir_op_priority(other) == "kernels"
