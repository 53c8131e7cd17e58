"""Blocks of code in README, CONTRIBUTING and docs/: Python runs, commands exist, excerpts are of their files.

All of it happens in this process. A block that nothing runs says why in a comment before it: `<!-- not run: why -->`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from litz.cli.main import main
from litz.options import OptionRow, core_options, make_options, plugin_option_rows
from litz_plugins import make_plugins
from litz_plugins.words import OWN_DISTS, install
from support.doc_blocks import ROOT, Block, blocks, pages

ALL = [block for page in pages() for block in blocks(page)]
RUN = sorted({block.page for block in ALL if block.is_python and not block.mark[0]})
COMMAND = re.compile(r"^(?:\$ )?((?:[A-Z][A-Z0-9_]*=\S* )*)(litz|make|python|torchrun|pip)(?=\s|$)(.*)$")
MADE_UP = re.compile(r"LITZ_(PLUGIN_(OPTION|NAME)|CACHEDIR|NEED_BROWSER|TEST_RANKS|GENTLE_\w+|RECIPROCALS_\w+|MY_\w+)")
"""Variables that pages explain something by (a misspelt one, those of the plugins that pages write), and one that only
tests read."""
MADE_UP_PLUGINS = ("gentle.", "mine.", "my_")
AFTER = re.compile(r"\s{2,}.*|\s[|&;]+(\s.*|$)|;\s.*")
"""What follows a command on its line: a remark, or another command."""
OPTIONS = re.compile(r"options=(\{[^{}]*\})")


def prelude() -> dict[str, Any]:
    """What a block may use without saying so: a model, its input, and torch."""
    return {"__name__": "__page__", "torch": torch, "model": torch.nn.Linear(8, 8), "x": torch.randn(2, 8)}


@pytest.mark.parametrize("page", RUN)
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    namespace = prelude()
    for block in ALL:
        if block.page == page and block.is_python and not block.mark[0]:
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)


def test_excerpts_are_of_their_files() -> None:
    found = [block for block in ALL if block.mark[0] == "from"]
    assert found
    for block in found:
        text = (ROOT / block.mark[1]).read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines()]
        for line in block.text.splitlines():
            assert line.strip() in (*lines, "..."), f"{block}: {block.mark[1]} has no line {line.strip()!r}"


def test_marks_of_tests_name_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*doc*.py"))
    for block in ALL:
        if block.mark[0] == "test":
            assert block.mark[1] in tests, f"{block}: no test of docs names {block.mark[1]!r}"


def commands() -> Iterator[tuple[Block, Mapping[str, str], str, list[str]]]:
    """Each command of a block that is not Python: where it stands, the variables before it, its name and arguments."""
    for block in ALL:
        if block.is_python or block.language not in ("", "sh", "console"):
            continue
        for line in block.text.splitlines():
            found = COMMAND.match(line.split(" #")[0].rstrip())
            if found:
                variables = dict(each.split("=", 1) for each in found[1].split())
                yield block, variables, found[2], shlex.split(AFTER.sub("", found[3]))


COMMANDS = list(commands())
JSON = re.compile(r'\{\s*"')


def test_json_parses() -> None:
    found = [block for block in ALL if block.language == "json" or (not block.language and JSON.match(block.text))]
    assert found
    for block in found:
        assert json.loads(block.text), block


def test_there_are_commands() -> None:
    assert {name for _, _, name, _ in COMMANDS} == {"litz", "make", "python", "torchrun", "pip"}


def test_commands_of_litz_exist() -> None:
    """Names, options and their choices are those that the command line takes."""
    for block, _, name, arguments in COMMANDS:
        if "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == ["litz"]:
            arguments = arguments[arguments.index("-m") + 2 :]  # python -m litz, torchrun -m litz
        elif name != "litz":
            continue
        arguments = [each for each in arguments if not each.startswith("[")]
        group: click.Command = main
        path: list[str] = []
        context: click.Context | None = None
        while isinstance(group, click.Group) and arguments and not arguments[0].startswith("-"):
            context = click.Context(group, context)
            command = group.get_command(context, arguments[0])
            assert command is not None or not group.commands, f"{block}: there is no command {path + arguments[:1]}"
            assert command is not None, f"{block}: {arguments[0]}"
            path, group, arguments = [*path, arguments[0]], command, arguments[1:]
        known = {option for each in group.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        for word in _own(arguments, group):
            assert word in known, f"{block}: `litz {' '.join(path)}` has no option {word}"


def _own(arguments: list[str], command: click.Command) -> Iterator[str]:
    """The options of a command line that are the command's, not those of the script that it runs."""
    flags = {name for each in command.params if isinstance(each, click.Option) and each.is_flag for name in each.opts}
    runs_script = any(isinstance(each, click.Argument) and each.name == "script" for each in command.params)
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            name = word.split("=")[0]
            yield name
            if name not in flags and "=" not in word:
                next(words, None)
        elif runs_script:
            return


def test_targets_of_make_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-zA-Z_.-]+):.*## ", text, re.MULTILINE))
    for block, _, name, arguments in COMMANDS:
        if name == "make":
            assert arguments[0] in targets, f"{block}: make has no target {arguments[0]}"


def test_modules_and_folders_exist() -> None:
    for block, _, name, arguments in COMMANDS:
        if name == "python" and "-m" in arguments:
            module = arguments[arguments.index("-m") + 1]
            assert importlib.util.find_spec(module) is not None, f"{block}: there is no module {module}"
        if name == "pip":
            for word in arguments:
                if word.startswith("./") and not word.startswith("./litz-"):
                    assert (ROOT / word / "pyproject.toml").exists(), f"{block}: {word} is no dist"
        for word in arguments:
            if word.startswith(("examples/", "benchmarks/")):
                assert (ROOT / word).exists(), f"{block}: {word}"


def test_nothing_is_installed_from_a_registry_that_has_it_not() -> None:
    """litz is on no registry, so that neither a page nor a message may say `pip install litz`."""
    for page in [*pages(), *ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/src/**/*.md")]:
        found = re.findall(r"pip install (?:-\S+ )*(?:litz\S*|\{dist\}(?!==))", page.read_text(encoding="utf-8"))
        assert not found, f"{page.name}: {found}"
    for plugin in OWN_DISTS:
        assert (ROOT / re.findall(r"\./(\w+)", install(plugin))[0] / "pyproject.toml").exists()


def rows() -> list[OptionRow]:
    """The options of core and of the plugins in this repository."""
    return [*core_options(), *plugin_option_rows(make_plugins().option_specs())]


def test_variables_exist() -> None:
    known = {name for row in rows() for name in row.env}
    for page in pages():
        for name in set(re.findall(r"\bLITZ_[A-Z][A-Z0-9_]+", page.read_text(encoding="utf-8"))):
            assert name in known or MADE_UP.fullmatch(name), f"{page.name}: nothing reads {name}"


def test_options_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `options={...}` of a page, in blocks and in sentences, is what a compile takes."""
    monkeypatch.chdir(tmp_path)
    specs, seen = make_plugins().option_specs(), 0
    for page in pages():
        for text in OPTIONS.findall(page.read_text(encoding="utf-8")):
            if "..." in text:
                continue  # options={"mode": ...}
            try:
                given = ast.literal_eval(text)
            except ValueError:
                continue  # a value is a variable's
            if not any(name.startswith(MADE_UP_PLUGINS) for name in given):
                for value in given.values():  # files that a page names are the reader's
                    if str(value).endswith(".json"):
                        Path(value).touch()
                make_options(None, given, specs, {})
                seen += 1
    assert seen > 5
