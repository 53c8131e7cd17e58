"""A plugin project to start from: `scaffold` writes one that works, with a pass, an option, an estimate and tests.

The templates are text with ``@name@`` (the plugin), ``@dist@`` (its distribution) and ``@package@`` (its module).
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from litz_plugins.errors import LitzError

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_TAKEN = ("plugins", "testing")  # litz-plugins and litz-testing are no plugins


class ScaffoldError(LitzError):
    """The project cannot be written: the name is unsuitable, or something is there already."""


def scaffold(path: str | Path, name: str) -> list[Path]:
    """Write the plugin ``name`` as a new project in the folder ``path``, which must be empty or absent.

    name: lower-case letters, digits and underscores (hyphens count as underscores). The distribution is litz-NAME, the
    package litz_NAME. Returns the files written, sorted. Errors: ScaffoldError.
    """
    name = name.replace("-", "_").removeprefix("litz_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _TAKEN:
        raise ScaffoldError(
            f"{name!r} cannot be a plugin's name",
            todo="use lower-case letters, digits and underscores, as in my_cost_model",
        )
    root = Path(path)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ScaffoldError(f"{root} is there already and not empty", todo="name a new folder")
    words = {"@name@": name, "@dist@": f"litz-{name.replace('_', '-')}", "@package@": f"litz_{name}"}
    words["@ENV@"] = f"LITZ_{name.upper()}_LEVEL"
    written = []
    for where, text in _FILES.items():
        for word, value in words.items():
            where, text = where.replace(word, value), text.replace(word, value)
        file = root / where
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return sorted(written)


_PYPROJECT = """[build-system]
requires = ["setuptools>=77", "wheel"]
build-backend = "setuptools.build_meta"

[project]
name = "@dist@"
version = "0.1.0"
description = "A plugin of litz"
requires-python = ">=3.11"
dependencies = ["litz-plugins>=0.1"]

# litz finds the plugin here: the name on the left is what `litz plugins` lists and LITZ_DISABLE_PLUGINS takes.
[project.entry-points.litz]
@name@ = "@package@"

[tool.setuptools.packages.find]
where = ["src"]
"""

_MODULE = '''"""A plugin of litz: one pass, one option, one cost estimate. Keep what you need.

`litz_plugins.hookspecs` documents every hook, `litz_plugins.records` what they return.
"""

from __future__ import annotations

from litz_plugins import Estimate, OptionSpec, Pass, hookimpl

LAUNCH_US = 2.5  # an extern's host time, in microseconds; measure your own machine


@hookimpl
def litz_register_options():
    """Set with options={"@name@.level": 0}, or @ENV@ in the environment."""
    return [OptionSpec("level", int, 1, "how much the pass records: 0 nothing, 1 the number of operations")]


@hookimpl
def litz_register_passes(options):
    if options["@name@.level"] == 0:
        return []
    return [Pass("@name@_count", "program", count_operations)]


@hookimpl
def litz_estimate_runtime(operation, target):
    """Externs on the CPU that have no arguments take as long as their launch; None leaves the rest to others."""
    if target.type != "cpu" or not hasattr(operation, "target") or operation.reads:
        return None
    return Estimate(LAUNCH_US, 0.5 * LAUNCH_US, 4 * LAUNCH_US, "@name@: launch only")


def count_operations(program, context):
    """A pass that changes nothing and puts on record how many operations there are.

    One that changes something returns `dataclasses.replace(program, operations=...)`.
    """
    count = len(program.operations)
    context.record("the program", "counted", f"it has {count} operations")
    return program
'''

_TEST = """from types import SimpleNamespace

import @package@
from litz_plugins.testing import check_plugin, make_test_plugins


def test_plugin_is_well_formed():
    found = check_plugin(@package@, name="@name@")
    assert found.options == ("@name@.level",)
    assert found.passes == ("@name@_count",)


def test_pass_records_the_count():
    harness = make_test_plugins(@package@, name="@name@", options={"@name@.level": 2})
    program = SimpleNamespace(operations=("a", "b"))
    assert harness.run_passes("program", program) is program
    assert harness.decisions[0].reason == "it has 2 operations"


def test_pass_can_be_switched_off():
    assert make_test_plugins(@package@, name="@name@", options={"@name@.level": 0}).passes == ()


def test_estimate():
    harness = make_test_plugins(@package@, name="@name@")
    launch_only = SimpleNamespace(target="rand", reads=())
    assert harness.estimate(launch_only, "cpu").us == @package@.LAUNCH_US
    assert harness.estimate(launch_only, "cuda") is None
"""

_README = """# @dist@

A plugin of litz, a `torch.compile` backend.

    pip install -e .
    litz plugins          # lists it
    python -m pytest

Leave it out for once: `LITZ_DISABLE_PLUGINS=@name@`.
"""

_FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "src/@package@/__init__.py": _MODULE,
    "tests/test_@name@.py": _TEST,
}
