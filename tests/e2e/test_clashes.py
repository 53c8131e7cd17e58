"""Two plugins that register the same thing: the one that is left out has had no part in what was compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import litz_aot
from litz import pipeline
from litz.driver.builtin import builtin_plugins
from litz.schedule import core_program_passes
from litz.targets.meta.codegen import MetaCodegen
from litz_aot import plugin as aot_plugin
from litz_plugins import (
    DuplicateRegistrationError,
    Pass,
    PassOrderError,
    PluginWarning,
    Target,
    TargetSpec,
    TemplateSpec,
    hookimpl,
    make_plugins,
)
from litz_plugins.validate import HOOKS

aten = torch.ops.aten


def keep(noun: Any, context: Any) -> Any:
    return noun


def a_pass(name: str, **order: Any) -> Callable[[], Any]:
    return lambda: [Pass(name, "program", keep, **order)]


def target() -> Any:
    return [TargetSpec("xpu", lambda device, options: Target("xpu"), MetaCodegen())]


def template() -> Any:
    return [TemplateSpec("tiles", ("mm",), lambda operation, context: [])]


LAST = next(item for item in core_program_passes() if item.after)
EITHER = "leave one of them out, e.g. LITZ_DISABLE_PLUGINS=mine"
CLASHES: dict[str, tuple[Any, Any, str]] = {
    "decompositions": (lambda: {aten.cos.default: torch.sin}, lambda: {aten.cos.default: torch.sin}, EITHER),
    "lowerings": (lambda: {aten.sin.default: keep}, lambda: {aten.sin.default: keep}, EITHER),
    "layout_needs": (lambda: {aten.sin.default: "any"}, lambda: {aten.sin.default: "traced"}, EITHER),
    "templates": (template, template, EITHER),
    "targets": (target, target, EITHER),
    "passes": (a_pass("own"), a_pass("own"), "change `after` or `before`"),
    "passes that wait for each other": (
        a_pass("one", after=("two?",)),
        a_pass("two", after=("one?",)),
        "change `after` or `before`",
    ),
    "passes that wait for core's": (
        lambda: [],
        a_pass("own", after=(LAST.name,), before=LAST.after[:1]),
        "change `after` or `before`",
    ),
}
"""What the plugins "early" and "mine" register, and what to do about the clash."""


def registered(kind: str) -> str:
    return f"litz_register_{kind.partition(' ')[0]}"


def test_every_kind_of_registration_that_can_clash_is_here() -> None:
    asked_elsewhere = {"litz_register_options", "litz_register_commands"}  # before the options; and by no compile
    assert {registered(kind) for kind in CLASHES} == {hook for hook in HOOKS if "_register_" in hook} - asked_elsewhere


def pair(kind: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """Two plugins that clash, of which the later has a decomposition that gives other numbers; what of it has run."""
    early, late, _ = CLASHES[kind]
    ran: list[str] = []

    def tanh(x: torch.Tensor) -> torch.Tensor:
        ran.append("decomposition")
        return x * 0 + 7

    def seen(noun: Any, context: Any) -> Any:
        ran.append("pass")
        return noun

    hook = registered(kind)
    hooks = {
        "litz_register_decompositions": lambda: {aten.tanh.default: tanh},
        "litz_register_passes": lambda: [Pass("see", "graph", seen)],
        "litz_compile_started": lambda: ran.append("observer"),
    }
    own = hooks.get(hook, lambda: {})
    hooks[hook] = lambda: {**own(), **late()} if isinstance(late(), dict) else [*own(), *late()]
    mine = SimpleNamespace(**{name: hookimpl(function) for name, function in hooks.items()})
    return [("early", SimpleNamespace(**{hook: hookimpl(early)})), ("mine", mine)], ran


def backend(extra: Sequence[tuple[str, Any]], mode: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=(), on_plugin_error=mode)
    return lambda gm, examples: pipeline.compile_backend(gm, examples, options=options, plugins=plugins)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) + 1


@pytest.mark.each_value
@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", CLASHES)
def test_the_plugin_that_is_left_out_has_had_no_part(kind: str, trained: bool) -> None:
    extra, ran = pair(kind)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=trained)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        result = torch.compile(f, backend=backend(extra, "disable"))(x)
    said = [str(item.message) for item in caught if issubclass(item.category, PluginWarning)]
    assert ran == []
    torch.testing.assert_close(result, f(x))
    if trained:
        result.sum().backward()
        torch.testing.assert_close(x.grad, 1 - x.detach().tanh() ** 2)
    assert len(said) == 1 and "plugin 'mine'" in said[0]
    assert CLASHES[kind][2] in said[0] and "authors" not in said[0]


@pytest.mark.parametrize("kind", CLASHES)
def test_a_clash_is_refused_before_anything_has_run(kind: str) -> None:
    extra, ran = pair(kind)
    with pytest.raises(BackendCompilerFailed) as caught:
        torch.compile(f, backend=backend(extra, "raise"))(torch.randn(4))
    assert isinstance(caught.value.inner_exception, (DuplicateRegistrationError, PassOrderError))
    assert ran == [] and CLASHES[kind][2] in str(caught.value)


@pytest.mark.parametrize("way", ["ahead of time", "schedule only"])
def test_a_clash_is_found_first_by_whoever_traces(way: str, tmp_path: Path) -> None:
    extra, ran = pair("lowerings")
    extra = [*extra, ("aot", aot_plugin)]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=(), on_plugin_error="disable")
    x = torch.randn(4)
    torch._dynamo.reset()
    with pytest.warns(PluginWarning, match="plugin 'mine'"):
        if way == "schedule only":
            assert len(pipeline.schedule_only(f, (x,), {}, plugins)) == 1
        else:
            litz_aot.compile(f, (x,), tmp_path / "package", plugins=plugins)
            torch.testing.assert_close(litz_aot.load(tmp_path / "package")(x), f(x))
    assert ran == []
