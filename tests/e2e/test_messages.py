"""What a user sees first when something is wrong: one message that says what, where and what to do."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from support.third_party import run_python, write_dist

COMPILE = "import torch; torch.compile(lambda x: torch.softmax(x.sin(), -1), backend='litz')(torch.randn(8, 8))"


def failure(options: dict[str, Any] | None = None, mode: str | None = None, device: str = "cpu") -> str:
    """What Python prints when a compile fails."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="litz", options=options, mode=mode)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        compiled(torch.ones(3, device=device))
    return "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"options": {"debgu": True}}, ["no option 'debgu'", "did you mean 'debug'?"]),
        (
            {"options": {"gentle.level": 1}},
            ["no option 'gentle.level'", "no installed plugin is called 'gentle': install the plugin's dist"],
        ),
        ({"options": {"threads": "many"}}, ["'threads' cannot be 'many'", "a whole number"]),
        ({"mode": "fastest"}, ["cannot be 'fastest'", "mode=", "reduce-overhead"]),
        ({"options": {"cpp.compiler": "/no/g++"}}, ["no C++ compiler", "/no/g++", "apt install g++", "litz doctor"]),
    ],
)
def test_a_mistake_is_one_message_without_litzs_frames(arguments: dict[str, Any], parts: list[str]) -> None:
    text = failure(**arguments)
    assert all(part in text for part in parts), text
    assert "litz/backend.py" in text and "litz/pipeline.py" not in text and "litz/options/table.py" not in text


def test_an_unwritable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="litz", options={"cache_dir": str(tmp_path / "file" / "cache")})
    with pytest.warns(UserWarning, match="goes on without its disk cache.*file/cache.*LITZ_CACHE_DIR") as caught:
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert len([w for w in caught if w.category is UserWarning]) == 1


def test_a_device_without_a_code_generator() -> None:
    text = failure({"disable_plugins": ["meta"]}, device="meta")
    assert "no code for devices of type 'meta'" in text and "bug in litz" not in text and "'fallback': 'eager'" in text


PLUGINS = {
    "schedule": """
        from dataclasses import replace
        from litz_plugins import Pass, hookimpl
        def drop(schedule, context): return replace(schedule, steps=schedule.steps[:-1])
        @hookimpl
        def litz_register_passes(options): return [Pass("drop", "schedule", drop)]
    """,
    "lowering": """
        import torch
        from litz_plugins import hookimpl
        def low(*args, **kwargs): return "rubbish"
        @hookimpl
        def litz_register_lowerings(): return {torch.ops.aten.sin.default: low}
    """,
}


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("schedule", ["PluginHookError", "pass 'drop' (schedule stage)", "is never written"]),
        ("lowering", ["PluginHookError", "lowering of aten.sin.default", "node sin", "returned str, where a tensor"]),
    ],
)
def test_rubbish_from_a_plugin_is_the_plugins_without_debug_mode(kind: str, parts: list[str], tmp_path: Path) -> None:
    write_dist(tmp_path / "site", "litz-careless", {"careless": "careless_plugin"}, {"careless_plugin": PLUGINS[kind]})
    done = run_python("-c", COMPILE, path=(tmp_path / "site",), imported=True, LITZ_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert all(part in done.stderr for part in [*parts, "LITZ_DISABLE_PLUGINS=careless"]), done.stderr
