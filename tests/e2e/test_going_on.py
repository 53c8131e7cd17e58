"""Going on without a plugin that failed: in a backward, in the graph cache, in packages, on the record."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import litz_aot
from litz import pipeline
from litz import report as reports
from litz.backend import backend_with
from litz.cli.owned import owned
from litz.driver.builtin import builtin_plugins
from litz.ir import Extern
from litz.origins import plugin_call
from litz_aot import plugin as aot_plugin
from litz_aot.errors import PackageError
from litz_plugins import Choice, Pass, PluginHookError, PluginWarning, TemplateSpec, hookimpl, make_plugins
from litz_plugins.loading import Source
from support.own_plugins import CONTRACTIONS
from support.third_party import write_dist

aten = torch.ops.aten


def plugin(**hooks: Callable[..., Any]) -> Any:
    """A plugin object from functions by hook name (without "litz_"); its graphs can be kept."""
    hooks.setdefault("cache_fingerprint", lambda: "one of a test")
    return SimpleNamespace(**{f"litz_{name}": hookimpl(function) for name, function in hooks.items()})


def compiled(
    fn: Callable[..., Any], mine: Any = None, *, on_error: Any = "disable", also: Sequence[Any] = (), **options: Any
) -> Any:
    """`fn` compiled with a plugin more. also: plugins of litz's own."""
    torch._dynamo.reset()
    extra = [*also, *([] if mine is None else [("mine", mine)])]
    plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=(), on_plugin_error=on_error)
    return torch.compile(
        fn, backend=lambda gm, examples: pipeline.compile_backend(gm, examples, options=options, plugins=plugins)
    )


def fails(*arguments: Any) -> Any:
    raise RuntimeError("oh no")


def test_a_backward_goes_on_and_says_so_once() -> None:
    """A lowering that only the backward needs: the forward was compiled with the plugin."""
    calls: list[int] = []

    def lower(ctx: Any, *args: Any) -> Any:
        calls.append(1)
        return fails()

    mine = plugin(register_lowerings=lambda: {aten.where.self: lower, aten.sign.default: lower})
    x = torch.randn(8, 5, requires_grad=True)
    f = lambda x: (x.abs() * 3).sum()  # whose gradient needs a sign
    with reports.collect() as collected, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g = compiled(f, mine)
        g(x).backward()
        again = compiled(lambda x: f(x) + 1, mine)
        again(x).backward()
    torch.testing.assert_close(x.grad, 6 * x.detach().sign())
    assert len([item for item in caught if issubclass(item.category, PluginWarning)]) == 1 and len(calls) == 1
    forward, backward, *others = collected
    assert not any(d.chosen == "left out" for d in forward.decisions)
    for report in (backward, *others):
        (decision,) = (d for d in report.decisions if d.chosen == "left out")
        assert decision.subject == "plugin mine" and "lowering of aten.sign.default" in decision.reason
        assert "mine" not in report.plugins


def test_an_error_names_node_and_line_of_the_model() -> None:
    with pytest.raises(Exception, match="plugin 'mine' failed in lowering of aten") as caught:
        compiled(lambda x: x.sign(), plugin(register_lowerings=lambda: {aten.sign.default: fails}), on_error="raise")(
            torch.randn(3)
        )
    text = str(caught.value)
    assert "aten.sign.default: RuntimeError: oh no" in text
    assert "node sign" in text and "test_going_on.py" in text and "on_plugin_error" in text
    assert re.search(r"raised in \S*test_going_on.py:\d+, in fails\n", text), "the line of the plugin, not the model's"


def test_a_plugin_that_is_not_installed_can_be_gone_without(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_with(mine=plugin(register_lowerings=lambda: {aten.sign.default: fails}))
    x = torch.randn(3)
    for how in ("blocked", "failed"):
        monkeypatch.setenv("LITZ_DISABLE_PLUGINS", "mine" if how == "blocked" else "")
        torch._dynamo.reset()
        f = torch.compile(lambda x: x.sign(), backend=backend, options={"on_plugin_error": "disable"})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PluginWarning)
            torch.testing.assert_close(f(x), x.sign())
        said = [str(item.message) for item in caught if issubclass(item.category, PluginWarning)]
        assert len(said) == (how == "failed")
    assert "mend the plugin where it is passed in" in said[0] and "on_plugin_error" not in said[0], said


def test_a_graph_without_a_plugin_is_kept_as_that(tmp_path: Path) -> None:
    """It has the key of a process that never had the plugin, and who has that plugin does not find it."""
    known: dict[str, Any] = {"graph_cache": True, "cache_dir": tmp_path}
    x = torch.randn(7, 3)
    f = lambda x: (x.sign() * 2).cos()
    with reports.collect() as collected:
        with pytest.warns(PluginWarning):
            compiled(f, plugin(register_lowerings=lambda: {aten.sign.default: fails}), **known)(x)
        compiled(f, **known)(x)
        compiled(f, plugin(register_lowerings=lambda: {aten.sin.default: fails}), **known)(x)
    first, plain, other = collected
    assert plain.graph_cache.startswith("hit") and plain.key == first.key
    assert other.graph_cache.startswith("miss") and other.key != first.key
    assert any(d.chosen == "left out" for d in first.decisions)
    assert not any(d.chosen == "left out" for d in plain.decisions)


# ------------------------------------------------------------------------------------- functions that graphs call


def taking(function: Callable[..., Any]) -> Any:
    """A plugin that has products done by a function."""

    def choices(operation: Any, context: Any) -> list[Choice]:
        extern = Extern(operation.name, operation.device, function, operation.args, outputs=operation.outputs)
        return [Choice("my mm", "template", extern)]

    return plugin(
        register_templates=lambda options: [TemplateSpec("mine", ("mm",), choices)],
        select_choice=lambda choices: choices[-1],
    )


def test_a_function_that_fails_late_is_gone_without_on_inputs_as_they_were() -> None:
    calls: list[int] = []

    def my_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the second call")
        return torch.einsum("ij,jk->ik", a, b)

    def f(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total.add_(a.sum())
        total.mul_(2)
        return (a @ b) * total

    total, expected, a, b = torch.zeros(1), torch.zeros(1), torch.randn(4, 5), torch.randn(5, 6)
    g = compiled(f, taking(my_mm))
    torch.testing.assert_close(g(total, a, b), f(expected, a, b))
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            result = g(total, a, b)
        torch.testing.assert_close(result, f(expected, a, b))
        torch.testing.assert_close(total, expected)
    assert len(calls) == 2


def test_what_a_pass_puts_in_is_called_in_the_plugins_name() -> None:
    def wrong_sin(x: torch.Tensor) -> torch.Tensor:
        return x.sin()[:1]

    def by_call(program: Any, context: Any) -> Any:
        from dataclasses import replace

        from litz.ir import TensorRef

        (loop,) = program.loops
        ref = TensorRef(loop.reads[0], program.buffers[loop.reads[0]].layout)
        call = Extern(loop.name, loop.device, wrong_sin, (ref,), outputs=loop.writes)
        return replace(program, operations=(call,))

    mine = plugin(register_passes=lambda options: [Pass("by_call", "program", by_call)])
    with pytest.raises(
        PluginHookError, match=r"'mine' failed in the call of wrong_sin: it returned .*float32 \[1, 3\]"
    ):
        compiled(lambda x: x.sin(), mine, on_error="raise")(torch.randn(4, 3))


FUNCTION = """
import torch
from torch.nn.attention.flex_attention import flex_attention

def my_mm(a, b):
    return torch.einsum("ij,jk->ik", a, b)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A package that calls a function of a plugin's dist, and the file that the function is in."""
    site = tmp_path / "site"
    write_dist(site, "litz-mine", {}, {"mine_functions": FUNCTION})
    monkeypatch.syspath_prepend(str(site))
    function = importlib.import_module("mine_functions").my_mm
    plugins = make_plugins(builtin_plugins(), extra=[("mine", taking(function)), ("aot", aot_plugin)], entry_points=())
    known = {"mine": Source("mine", None, "external", "litz-mine", "1.0")}
    monkeypatch.setattr(plugins, "source_of", known.__getitem__)
    litz_aot.compile(lambda a, b: a @ b, (torch.ones(4, 5), torch.ones(5, 6)), tmp_path / "p", plugins=plugins)
    yield tmp_path / "p", site / "mine_functions.py"
    sys.modules.pop("mine_functions", None)


def loaded_anew(folder: Path) -> Any:
    """As another process would."""
    sys.modules.pop("mine_functions", None)
    importlib.invalidate_caches()
    return litz_aot.load(folder)


def test_a_package_knows_the_functions_that_it_calls(package: tuple[Path, Path]) -> None:
    folder, file = package
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    torch.testing.assert_close(loaded_anew(folder)(a, b), a @ b)
    file.write_text(FUNCTION.replace("return torch", "return 2 * torch"))
    with pytest.raises(PackageError, match=r"mine_functions:my_mm of the plugin 'mine' \(litz-mine 1.0\).*was edited"):
        loaded_anew(folder)
    file.write_text("")
    with pytest.raises(PackageError, match=r"of the plugin 'mine' .*is not here: AttributeError"):
        loaded_anew(folder)
    file.unlink()
    with pytest.raises(PackageError, match=r"of the plugin 'mine' .*is not here: ModuleNotFoundError"):
        loaded_anew(folder)
    info = next(file.parent.glob("*.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: litz-mine\nVersion: 1.1\n")
    file.write_text(FUNCTION)
    with pytest.raises(PackageError, match=r"litz-mine 1.1 is here"):
        loaded_anew(folder)


def test_whose_function_it_is() -> None:
    assert plugin_call.is_foreign(fails) and plugin_call.is_foreign(eval("lambda x: x", {}))
    assert not any(
        map(plugin_call.is_foreign, (aten.mm.default, torch.sin, pipeline.compile_backend, torch.nn.functional.relu))
    )


def test_a_command_that_fails_names_its_plugin() -> None:
    source = Source("mine", None, "external", "litz-mine", "1.0")
    with pytest.raises(PluginHookError, match="plugin 'mine' failed in the command 'dance': RuntimeError: oh no"):
        owned(click.Command("dance", callback=fails), source)(args=[], standalone_mode=False)

    def misused() -> None:
        raise click.UsageError("no such tune")

    with pytest.raises(click.UsageError):
        owned(click.Command("dance", callback=misused), source)(args=[], standalone_mode=False)


@pytest.mark.ci_cases("type")
@pytest.mark.parametrize("kind", ["type", "dimension", "nothing"])
def test_a_wrong_lowering_in_a_body_is_found(kind: str) -> None:
    """In a `score_mod` a product of another type gave wrong numbers without a word."""
    core = make_plugins(builtin_plugins(), entry_points=()).lowerings()

    def lower(ctx: Any, a: Any, b: Any) -> Any:
        product = core[aten.mul.Tensor](ctx, a, b)
        if kind == "type":
            return core[aten.gt.Scalar](ctx, product, 0)
        return core[aten.unsqueeze.default](ctx, product, 0) if kind == "dimension" else None

    def attention(*inputs: torch.Tensor) -> torch.Tensor:
        return flex_attention(*inputs, score_mod=lambda s, b, h, q, k: s + ((q - k) * (q + 2)).to(s.dtype))

    mine, inputs = plugin(register_lowerings=lambda: {aten.mul.Tensor: lower}), torch.randn(3, 1, 2, 16, 16).unbind()
    with pytest.raises(Exception, match=r"'mine' failed in lowering of aten\.mul\.Tensor"):
        compiled(attention, mine, on_error="raise", also=[CONTRACTIONS], cache=False)(*inputs)
    with pytest.warns(PluginWarning, match="goes on without a plugin: plugin 'mine'"):
        result = compiled(attention, mine, also=[CONTRACTIONS], cache=False)(*inputs)
    exact = attention(*(value.double() for value in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-5)
