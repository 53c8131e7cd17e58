"""docs/plugins/ keeps up with the code: what is made from the code is as it would be made, excerpts are of the example
dists, examples run, and what is listed is all that there is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from litz.backend import backend_with
from litz.cost import estimate
from litz.driver.builtin import builtin_plugins
from litz.driver.plugin_options import plugin_options
from litz.errors import InvalidOptionError
from litz.report import CompileReport, collect
from litz.target import target_named
from litz_plugins import STAGES, hookimpl, make_plugins
from litz_plugins.scaffold import kinds
from litz_plugins.testing import FakeOptions
from litz_plugins.validate import HOOKS
from litz_plugins.words import TEMPLATE_KINDS
from litz_testing.reference import PAGES
from support.own_plugins import CONTRACTIONS, with_passes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "plugins"
TUTORIALS = {page.name: page.read_text() for page in FOLDER.glob("*.md") if page.name not in PAGES}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_what_is_made_from_the_code_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `python -m litz_testing.reference docs/plugins`"


def test_every_kind_has_a_tutorial() -> None:
    assert {f"{kind}.md" for kind in kinds()} == TUTORIALS.keys() - {"index.md"}
    for kind in kinds():
        assert f"--kind {kind}\n" in TUTORIALS[f"{kind}.md"] and f"`{kind}`" in TUTORIALS["index.md"]


def test_no_hook_is_named_that_is_not() -> None:
    words = "register|estimate|select|cache|compile|pass|tune|partition"
    for name, text in TUTORIALS.items():
        assert set(re.findall(rf"\blitz_(?:{words})\w+", text)) <= {*HOOKS}, name
    assert all(f"`{hook}`" in TUTORIALS["index.md"] or hook in "".join(TUTORIALS.values()) for hook in HOOKS)


# ------------------------------------------------------------------------------------------------------- code blocks


def blocks() -> Iterator[tuple[str, str, str, str]]:
    """(page, marker, what it names, text) of each block of Python."""
    for name, text in TUTORIALS.items():
        for marker, about, code in re.findall(r"(?:<!-- (\w+): (\S+) -->\n)?```python\n(.*?)```", text, re.DOTALL):
            yield name, marker, about, code


def test_every_block_is_from_an_example_or_run() -> None:
    for page, marker, _, code in blocks():
        assert marker in ("from", "test"), f"{page} has code that nothing tests:\n{code}"


def test_excerpts_are_of_the_examples() -> None:
    found = [block for block in blocks() if block[1] == "from"]
    assert len(found) > 15
    for page, _, path, code in found:
        for part in code.split("...\n"):
            assert part.strip("\n") in (ROOT / path).read_text(), f"{page} shows what is not in {path}:\n{part}"


def named(name: str) -> str:
    (code,) = (code for _, marker, about, code in blocks() if (marker, about) == ("test", name))
    return code


RUN = ("hook", "option", "check", "testing", "examples", "estimate", "rotate", "scaled", "row", "traced", "partition")
"""The examples that tests below run."""


def test_every_example_is_named_below() -> None:
    assert {about for _, marker, about, _ in blocks() if marker == "test"} == {*RUN}


def plugin_of(name: str, *examples: str) -> ModuleType:
    """A plugin made of examples."""
    module = ModuleType(f"litz_{name}")
    module.__file__ = __file__  # for the graph cache's key
    for example in examples:
        exec(compile(named(example), f"docs/plugins ({example})", "exec"), vars(module))
    return module


def test_the_index_plugin_and_its_tests_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litz_gentle", plugin_of("gentle", "hook", "option"))
    torch._dynamo.reset()
    tests: dict[str, object] = {}
    exec(compile(named("testing"), "docs/plugins (testing)", "exec"), tests)
    run = [name for name, test in tests.items() if name.startswith("test_") and callable(test)]
    assert len(run) == 3
    for name in run:
        tests[name]()  # type: ignore[operator]


def test_an_option_that_is_checked_refuses_nonsense() -> None:
    mine = plugin_of("gentle", "option", "check")
    vars(mine)["litz_register_options"] = hookimpl(lambda: [vars(mine)["MOST"]])
    plugins = make_plugins(extra=[("gentle", mine)], entry_points=())
    assert plugin_options(plugins, None, {"gentle.most": "1GiB"})["gentle.most"] == "1GiB"
    with pytest.raises(InvalidOptionError, match=r"'gentle\.most' cannot be '8 apples'(.|\n)*a size, as 65536"):
        plugin_options(plugins, None, {"gentle.most": "8 apples"})


def test_the_examples_of_the_index_are_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that is shown has arguments that the kit takes, and each function takes its inputs, larger ones too."""
    import inspect

    from litz_plugins import testing
    from litz_testing.plugin_kit import check_conformance
    from litz_testing.plugin_kit.examples import EXAMPLES

    given: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "litz_gentle", plugin_of("gentle", "hook", "option"))
    monkeypatch.setattr(testing, "check_conformance", lambda plugin, **more: given.update(plugin=plugin, **more))
    shown: dict[str, Any] = {}
    exec(compile(named("examples"), "docs/plugins (examples)", "exec"), shown)
    shown["test_it_conforms"]()
    inspect.signature(check_conformance).bind(**given)
    for example in given["examples"]:
        if isinstance(example, str):
            assert example in EXAMPLES
        else:
            assert all(example.function(*example.inputs(more)).isfinite().all() for more in (0, 3))


def test_a_lowering_and_a_template_of_the_pages_work() -> None:
    def eager(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def eager_scaled(x: torch.Tensor, scale: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x * scale.reshape([-1 if at == dim % x.ndim else 1 for at in range(x.ndim)])

    rotate = torch.library.custom_op("litz_docs::rotate", eager, mutates_args=())
    rotate.register_fake(lambda x, cos, sin: torch.empty_like(x))
    scaled = torch.library.custom_op("litz_docs::scaled", eager_scaled, mutates_args=())
    scaled.register_fake(lambda x, scale, dim=-1: torch.empty_like(x))
    rotary = plugin_of("rotary", "rotate", "scaled")
    table = {getattr(torch.ops.litz_docs, name).default: vars(rotary)[name] for name in ("rotate", "scaled")}
    vars(rotary)["litz_register_lowerings"] = hookimpl(lambda: table)
    x, cos, sin, weight, bias = (torch.randn(*size) for size in ((1, 8), (1, 8), (1, 8), (6, 8), (6,)))

    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rotate(x, cos, sin), scaled(w, bias, 0), bias).relu()

    torch._dynamo.reset()
    backend = backend_with(rotary=rotary, rows=plugin_of("rows", "row"))
    with collect() as reports:
        found = torch.compile(f, backend=backend, options={"debug": True})(x, weight, bias)
    torch.testing.assert_close(found, f(x, weight, bias))
    assert not reports[0].externs


def test_what_runs_before_there_is_a_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin((torch.tanh(x) * 2) ** 2).sum()

    torch._dynamo.reset()
    x = torch.randn(20, requires_grad=True)
    backend = backend_with(squares=plugin_of("squares", "traced"), saving=plugin_of("saving", "partition"))
    with collect() as reports:
        torch.compile(f, backend=backend)(x).backward()
    (expected,) = torch.autograd.grad(f(x), x)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)
    decided = {(decision.plugin, decision.chosen) for decision in reports[0].decisions}
    assert {("squares", "a product"), ("saving", "the partitioner of saving")} <= decided


@pytest.fixture(scope="module")
def softmax() -> CompileReport:
    torch._dynamo.reset()
    with collect() as reports:
        torch.compile(lambda x: x.softmax(-1), backend=backend_with())(torch.randn(4, 50))
    return reports[0]


def test_the_estimate_goes_before_cores(softmax: CompileReport) -> None:
    plugins = make_plugins(builtin_plugins(), extra=[("copies", plugin_of("copies", "estimate"))], entry_points=())
    program, h100 = softmax.program, target_named("NVIDIA H100 80GB HBM3")
    assert program is not None
    ours = plugins.estimate_runtime_from(program.loops[0], h100, program)
    core = estimate(program.loops[0], h100, program)
    assert ours is not None and core is not None
    assert ours[0] == "copies" and ours[1].us == pytest.approx(core.us / 0.8)


# -------------------------------------------------------------------------------------------------- what is listed


def test_the_program_that_is_shown(softmax: CompileReport) -> None:
    ((shown),) = re.findall(r"<!-- output: softmax -->\n```text\n(.*?)\n```", TUTORIALS["index.md"], re.DOTALL)
    assert shown == str(softmax.program)


def test_the_passes_that_are_listed() -> None:
    """`<!-- passes of OWNER: STAGE, ... -->`, then a paragraph that names the owner's passes of these stages, in
    order."""
    passes = with_passes(CONTRACTIONS).passes(FakeOptions({}))
    owners = {"core": "core", "litz-passes": "passes", "litz-contractions": "contractions"}
    listed = re.findall(r"<!-- passes of ([\w-]+): ([^>]*) -->\n(.*?)\n\n", "".join(TUTORIALS.values()), re.DOTALL)
    assert {stage for _, stages, _ in listed for stage in stages.split(", ")} == set(STAGES)
    for owner, stages, text in listed:
        own = [found for found in passes if found.plugin == owners[owner]]
        wanted = [found.name for found in own if found.stage in stages.split(", ")]
        assert re.findall(r"`(\w+)`", text) == wanted, f"{owner} has {', '.join(f'`{name}`' for name in wanted)}"


def test_the_kinds_of_contractions_that_are_listed() -> None:
    text = TUTORIALS["template.md"].partition("| kind | operator |")[2].partition("\n\n")[0]
    listed = [kind for row in text.splitlines()[2:] for kind in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(TEMPLATE_KINDS)
