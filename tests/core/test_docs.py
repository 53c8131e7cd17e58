"""The docs keep up with the code: every hook and option is in them, their examples run, what they name exists.

`python tests/core/test_docs.py` prints the table of options for docs/options.md.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from litz.options import MODES, OptionRow, core_options
from litz.target import target_named
from litz_plugins.scaffold import scaffold
from litz_plugins.testing import check_plugin
from litz_plugins.validate import HOOKS

DOCS = Path(__file__).parents[2] / "docs"


def option_line(row: OptionRow) -> str:
    """A row of the table in docs/options.md."""
    default = "the platform's cache folder" if callable(row.default) else _value(row.default)
    env = ", ".join(f"`{name}`" for name in row.env)
    return f"| `{row.name}` | {default} | {env} | {row.accepted} | {row.help} |"


def _value(value: object) -> str:
    if value is None or value == ():
        return "unset"
    return f"`{value}`"


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_every_hook_is_documented(hook: str) -> None:
    signature = f"`{hook}({', '.join(HOOKS[hook])})`"
    assert signature in (DOCS / "plugins.md").read_text(), f"docs/plugins.md should have {signature}"


def test_no_hook_is_documented_that_is_not() -> None:
    text = (DOCS / "plugins.md").read_text()
    assert set(re.findall(r"\blitz_(?:register|estimate|select|cache|compile|pass)_\w+", text)) <= set(HOOKS)


@pytest.mark.parametrize("row", core_options(), ids=lambda row: row.name)
def test_every_option_is_documented(row: OptionRow) -> None:
    assert option_line(row) in (DOCS / "options.md").read_text(), "`python tests/core/test_docs.py` prints the table"


def test_no_option_is_documented_that_is_not() -> None:
    named = re.findall(r"^\| `([\w.]+)` \| .* \| `LITZ_", (DOCS / "options.md").read_text(), re.MULTILINE)
    assert set(named) == {row.name for row in core_options()}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_documented(mode: str) -> None:
    assert f"| `{mode}` |" in (DOCS / "options.md").read_text()


def examples() -> dict[str, str]:
    text = (DOCS / "plugins.md").read_text()
    return dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL))


def test_every_example_has_a_test() -> None:
    text = (DOCS / "plugins.md").read_text()
    assert len(examples()) == text.count("```python")


def test_the_example_plugin_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass, the option and the estimate of the page as one plugin, used by a real compile."""
    import torch

    from litz.cost import Roofline
    from litz.pipeline import compile_backend
    from litz_plugins import make_plugins

    source = "\n".join(examples()[name] for name in ("pass", "option", "estimate"))
    namespace: dict[str, object] = {"__name__": "litz_gentle"}
    exec(compile(source, "docs/plugins.md", "exec"), namespace)
    plugin = type(sys)("litz_gentle")
    vars(plugin).update(namespace)
    monkeypatch.setitem(sys.modules, "litz_gentle", plugin)
    found = check_plugin(plugin, name="gentle")
    assert (found.options, found.passes) == (("gentle.level",), ("tanh_by_sigmoid",))

    from litz.builtin import builtin_plugins
    from litz.report import collect

    plugins = make_plugins(builtin_plugins(), extra=[("gentle", plugin)], entry_points=())
    options = {"debug": True, "cache_dir": tmp_path}
    torch._dynamo.reset()
    x = torch.randn(8, 8)
    with collect() as reports:
        f = torch.compile(torch.tanh, backend=lambda gm, args: compile_backend(gm, args, None, options, plugins))
        torch.testing.assert_close(f(x), torch.tanh(x))
    assert any(d.plugin == "gentle" and d.chosen == "rewritten" for d in reports[0].decisions)
    assert "tanh" not in "".join(reports[0].kernel_sources.values()).partition('extern "C"')[2]

    h100 = target_named("NVIDIA H100 80GB HBM3")
    program = reports[0].program
    assert program is not None
    ours = plugins.estimate_runtime_from(program.loops[0], h100, program)
    core = make_plugins([("roofline", Roofline())], entry_points=()).estimate_runtime(program.loops[0], h100, program)
    assert ours is not None and core is not None
    assert ours[0] == "gentle" and ours[1].us == pytest.approx(core.us / 0.8)


def test_the_example_tests_pass(tmp_path: Path) -> None:
    """The tests of the page on the plugin of the page, in a project as `litz plugins new` writes it."""
    scaffold(tmp_path / "litz-gentle", "gentle")
    source = "\n".join(examples()[name] for name in ("pass", "option", "estimate"))
    (tmp_path / "litz-gentle" / "src" / "litz_gentle" / "__init__.py").write_text(source)
    tests = tmp_path / "litz-gentle" / "tests"
    (tests / "test_gentle.py").unlink()  # those of the plugin that the scaffold wrote
    for name in ("testing", "compile"):
        (tests / f"test_page_{name}.py").write_text(examples()[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    paths = [str(tmp_path / "litz-gentle" / "src"), *(p for p in sys.path if p)]
    env = {
        "PYTHONPATH": ":".join(paths),
        "LITZ_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": _path(),
        "LITZ_CPP_QUALIFY": "0",
    }
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _path() -> str:
    import os

    return os.environ.get("PATH", "")


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), f"{page} links to {target}"


def test_names_in_the_docs_exist() -> None:
    """`litz.x.y`, `litz_plugins.x` and `litz_testing.x` in any page are modules, or things in them."""
    import importlib

    for page in DOCS.glob("*.md"):
        for name in set(re.findall(r"`(litz(?:_plugins|_testing)?(?:\.\w+)+)", page.read_text())):
            parts = name.split(".")
            for cut in range(len(parts), 0, -1):
                try:
                    found: object = importlib.import_module(".".join(parts[:cut]))
                except ModuleNotFoundError:
                    continue
                for part in parts[cut:]:
                    assert hasattr(found, part), f"{page.name}: {name}"
                    found = inspect.getattr_static(found, part)
                break
            else:
                pytest.fail(f"{page.name}: {name}")


if __name__ == "__main__":
    print("\n".join(option_line(row) for row in core_options()))
