"""Capture takes part in AOTAutograd's disk cache: what one process traced, another calls without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from litz.capture import torch_api
from litz.capture.backward_inputs import BackwardInputs, SavedTensorHooks, TracedTensor, as_traced
from litz.capture.kept import Facts
from litz.capture.size_text import read_size, size_text
from litz.origins.trust import OWN
from support import kept_cases
from support.warm import run_warm

SCRIPT = Path(kept_cases.__file__)
Run = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Cases of support.kept_cases, in a process of their own, all with the same caches."""
    (tmp_path / "graphs").mkdir()

    def run(*cases: str, setting: str = "a", **environ: str) -> dict[str, dict[str, Any]]:
        path = os.pathsep.join((str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")))
        places = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), "PYTHONPATH": path}
        variables = {**os.environ, **places, **environ}
        arguments = [str(SCRIPT), str(tmp_path / "graphs"), setting, *cases]
        done = run_warm(arguments, variables, imported=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


TRACED_ONCE = (
    "inference",
    "training",
    "training+retained",
    "training+offloaded",
    "dynamic",
    "dynamic+offloaded",
    "empty",
    "written",
    "views",
    "checkpointed",
    "complex",
)


@pytest.mark.nightly
def test_a_second_process_traces_nothing(process: Run) -> None:
    first = process(*TRACED_ONCE)
    assert first["inference"]["compiled"] == 1 and first["training"]["compiled"] == 2
    again = process(*TRACED_ONCE)
    for case in TRACED_ONCE:
        assert again[case]["compiled"] == 0 and again[case]["hits"] == 1, (case, again[case])
        assert again[case]["error"] == pytest.approx(first[case]["error"]), case  # the same graphs have run
        assert again[case]["error"] < 1e-4, case


def test_other_sizes_within_the_guards_are_found_and_others_traced(process: Run) -> None:
    process("dynamic")
    found = process("longer", "training")
    assert found["longer"]["compiled"] == 0 and found["longer"]["error"] < 1e-4
    assert found["training"]["compiled"] == 2


@pytest.mark.ci_cases("transposed", "other")
@pytest.mark.parametrize("other", ["wider", "transposed", "bfloat16", "other"])
def test_what_differs_in_shape_strides_dtype_or_program_is_traced(process: Run, other: str) -> None:
    process("inference")
    found = process(other)[other]
    assert found["compiled"] == 1 and found["hits"] == 0 and found["error"] < (0.02 if other == "bfloat16" else 1e-5)


def test_another_setting_is_traced(process: Run) -> None:
    process("inference")
    assert process("inference", setting="b")["inference"]["compiled"] == 1


def test_where_the_graph_is_gone_it_is_traced_and_kept_again(process: Run, tmp_path: Path) -> None:
    process("training")
    for file in (tmp_path / "graphs").iterdir():
        file.unlink()
    found = process("training")["training"]
    assert found["compiled"] == 2 and found["hits"] == 0 and found["error"] < 1e-4
    assert process("training")["training"]["hits"] == 1


@pytest.mark.ci_cases("users_op", "shared")
@pytest.mark.parametrize("case", ["shared", "users_op", "through_storage"])
def test_what_no_key_tells_is_traced_each_time(process: Run, case: str) -> None:
    """Inputs that share memory and are written, ops whose rules are a user's, offsets into a storage."""
    process(case)
    found = process(case)[case]
    assert found["compiled"] == 1 and found["hits"] == 0 and found["error"] < 1e-5


def test_nothing_is_kept_where_the_user_switched_torchs_cache_off(process: Run) -> None:
    process("inference", setting="off")
    assert process("inference", setting="off")["inference"]["compiled"] == 1


def test_the_reason_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.fx.symbolic_trace(torch.nn.Identity())
    import torch._functorch.config as config

    with config.patch(enable_autograd_cache=False):
        assert "enable_autograd_cache" in torch_api.why_not_kept(module)
    assert "compiled autograd" in torch_api.why_not_kept(object())
    monkeypatch.setattr(torch_api.aot_cache, "_missing", lambda: "FxGraphCacheLoadable")
    with config.patch(enable_autograd_cache=True):
        assert "has no FxGraphCacheLoadable" in torch_api.why_not_kept(module)


def test_this_torchs_cache_is_known() -> None:
    """Otherwise each process would trace anew, and nobody would notice but by the time."""
    assert torch_api.why_not_kept(torch.fx.symbolic_trace(torch.nn.Identity())) == ""


@pytest.mark.parametrize("form", [lambda found: (found, "settings"), lambda found: found], ids=["2.13", "2.11"])
@pytest.mark.parametrize("found", [None, len])
def test_a_miss_is_seen_in_either_form_of_torchs_answer(
    monkeypatch: pytest.MonkeyPatch, form: Callable[[Any], Any], found: Any
) -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    missed: list[str] = []
    monkeypatch.setattr(AOTAutogradCache, "try_load", staticmethod(lambda: form(found)))
    module = torch.fx.symbolic_trace(torch.nn.Identity())
    with torch_api.found_by(module, "", lambda key, facts: None, OWN, lambda: missed.append("traced")):
        assert AOTAutogradCache.try_load() == form(found)
    assert bool(missed) is (found is None)


def test_facts_come_back_from_their_text() -> None:
    tensor = TracedTensor(1, "x", "float32", "cpu", (3, "2*s0"), ("2*s0", 1), False, False, True, False)
    facts = Facts("backward", True, frozenset({2}), {0: (True, False)}, BackwardInputs((tensor,), {0: "s0"}))
    text = facts.as_text()
    assert text is not None and Facts.from_text(text) == facts
    for damaged in ("", "{}", text[:-1], text.replace('"litz": 1', '"litz": 0'), text.replace('"at"', '"ta"'), "[]"):
        assert Facts.from_text(damaged) is None


def test_a_size_without_a_text_is_not_kept() -> None:
    s0 = _symbol()
    odd = torch.sym_float(s0) / 3
    tensor = TracedTensor(0, "x", "float32", "cpu", (odd.node.expr,), (1,), False, False, False, False)
    assert Facts("backward", inputs=BackwardInputs((tensor,), {})).as_text() is None


@pytest.mark.parametrize("text", ["s0*(s1 + 2)//3", "Max(1, s0 - s1)", "Mod(s0, 4)", "-s0 + 2**s1"])
def test_sizes_are_read_by_rules(text: str) -> None:
    sizes = {"s0": 7, "s1": 5}
    assert read_size(text, sizes) == eval(text, {"Max": max, "Mod": lambda a, b: a % b, **sizes})


@pytest.mark.parametrize(
    "text", ["__import__('os')", "s0.bit_length()", "[1][0]", "s2", "'a'", "s0 if s0 else 1", "1.5", ""]
)
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_size(text, {"s0": 1})


def test_a_symbolic_size_goes_through_text() -> None:
    s0 = _symbol()
    text = size_text((s0 * 3 // 2 + 1).node.expr)
    assert text is not None and read_size(text, {str(s0.node.expr): 7}) == 11


def _symbol() -> Any:
    from torch._dynamo.source import ConstantSource

    env = ShapeEnv()
    symbol = env.create_symbol(
        7, ConstantSource("s"), dynamic_dim=torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC
    )
    return env.create_symintnode(symbol, hint=7)


def test_what_a_hook_unpacks_is_as_traced_by_facts_from_a_file() -> None:
    """The same copies as by the traced sizes: sizes that vary are texts."""
    tensor = TracedTensor(1, "x", "float32", "cpu", ("s0", 2), (1, "s0"), False, False, False, True)
    hooks, seen = SavedTensorHooks(), []
    hooks.seen = True

    def backward(args: list[Any]) -> Sequence[Any]:
        seen.extend(args)
        return ()

    given = torch.arange(6.0).view(3, 2)
    as_traced(backward, BackwardInputs((tensor,), {0: "s0"}), hooks)([3, given])
    assert seen[1].stride() == (1, 3) and torch.equal(seen[1], given) and seen[1].data_ptr() != given.data_ptr()
    with pytest.raises(RuntimeError, match=r"unpacked sizes \[3, 2\] for x"):
        as_traced(backward, BackwardInputs((tensor,), {0: "s0"}), hooks)([4, given])
