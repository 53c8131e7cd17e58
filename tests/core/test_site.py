"""The documentation's site keeps up with the code. `make docs` builds it; what needs no mkdocs is tested here."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from website import command_line, errors, links, notebook, reference, sources, worked_example

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_worked_example_is_what_litz_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the files that the page names are those that the function goes through: 25 at most, so that one can read
    them all."""
    monkeypatch.delenv("LITZ_CALIBRATION", raising=False)
    page, run = worked_example.PAGE.read_text(encoding="utf-8"), set[str]()
    watched = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: run.add(frame.f_code.co_filename))
    try:
        texts = worked_example.texts_of_stages()
    finally:
        sys.setprofile(watched)
    assert {mark[1] for mark in worked_example.MARK.findall(page)} == set(texts)
    assert worked_example.filled(page, texts) == page, "`python -m website.worked_example` writes the page anew"
    assert len(texts["softmax"].splitlines()) > 10 and "tl.dot" in texts["product"]

    named = {(DOCS / link).resolve() for link in re.findall(r"\]\((\.\./[^)]*\.py)\)", page)}
    assert len(named) <= 25 and all(file.is_file() for file in named)
    walked = {file for file in named if "src" in file.parts and file.name != "pipeline.py"}  # which is a page to read
    assert len(walked) >= 20 and walked <= {Path(file).resolve() for file in run}


@pytest.mark.nightly
def test_the_notebook_prints_what_it_shows() -> None:
    path = DOCS / "first_steps.ipynb"
    shown = [
        "".join(line for output in cell["outputs"] for line in output["text"])
        for cell in notebook.cells(path)
        if cell["cell_type"] == "code"
    ]
    assert any(shown)
    assert notebook.run(path) == shown, "`python -m website.notebook` runs and stores it"
    assert "```python\nimport torch" in notebook.as_markdown(path)


@pytest.mark.nightly
def test_the_page_of_commands_has_all_commands() -> None:
    page = command_line.page()
    for name in ("litz doctor", "litz cache clear", "litz plugins new", "litz estimate-collective"):
        assert f"\n## {name}\n" in page


@pytest.mark.nightly
def test_the_page_of_errors_has_all_errors_and_says_what_each_is() -> None:
    page = errors.page()
    for exception in errors.exceptions():
        assert f"\n## {exception.__name__}\n" in page
        assert inspect.getdoc(exception), exception


@pytest.mark.nightly
@pytest.mark.parametrize("make", [reference.litz_page, reference.litz_plugins_page])
def test_the_pages_of_names_are_whole(make: object) -> None:
    page = make()  # type: ignore[operator]
    assert page.startswith("# litz") and page.count("\n### ") > 5


def test_public_names_say_what_they_are() -> None:
    for name, thing in reference.public_names():
        documented = inspect.getdoc(thing) or ""
        assert len(documented) > 20 and not documented.startswith(f"{thing.__name__}("), f"{name} has no docstring"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("page", "target", "found"),
    [
        ("options.md", "aot.md#x", "aot.md#x"),
        ("use/modes.md", "../options.md", "../options.md"),
        ("design.md", "../core/src/litz/pipeline.py", "source/core/src/litz/pipeline.py.md"),
        ("use/modes.md", "../../CONTRIBUTING.md#tests", "../contributing.md#tests"),
        ("contributing.md", "docs/targets.md", "targets.md"),
        ("source/examples/litz-numpy/README.md.md", "src/a.py", "src/a.py.md"),
        ("index.md", "first_steps.ipynb", "first_steps.md"),
    ],
)
def test_links_stay_inside_the_site(page: str, target: str, found: str) -> None:
    assert links.inside(page, f"[x]({target})") == f"[x]({found})"


def test_the_search_leaves_out_data() -> None:
    data = ROOT / "benchmarks/results/host.jsonl"
    found, other = sources.page(data, "host"), sources.page(ROOT / "benchmarks/host_time.py", "host_time")
    assert "exclude: true" in found and "exclude: true" not in other


def test_every_link_leads_to_a_file() -> None:
    """So that links hold where pages are read without the site, too. Anchors are checked by `make docs`."""
    for path in [ROOT / "README.md", *(ROOT / name for name in links.OUTSIDE), *DOCS.rglob("*.md")]:
        for link in links.LINK.finditer(links.CODE.sub("", path.read_text(encoding="utf-8"))):
            assert (path.parent / link[1]).exists(), f"{path.name} links to {link[1]}"


@pytest.mark.nightly
def test_the_notebook_is_a_notebook() -> None:
    text = json.loads((DOCS / "first_steps.ipynb").read_text(encoding="utf-8"))
    assert (text["nbformat"], text["nbformat_minor"]) == (4, 5)
    assert all(cell["id"] for cell in text["cells"])


@pytest.mark.parametrize("word", ["ROCm", "deterministic", "vLLM"])
def test_a_reader_who_searches_finds(word: str) -> None:
    """The site's search finds whole words of pages."""
    pages = [path for path in DOCS.rglob("*.md") if re.search(rf"\b{word}\b", path.read_text(encoding="utf-8"))]
    assert pages, word


def test_the_site_names_its_version_and_orders_tutorials() -> None:
    """The first page has what a visitor asks for, and each tutorial has its place in an order."""
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    for asked in ("pip install ./plugins ./core", "<!-- made: front summary -->", "assets/report.png", "Why litz?"):
        assert asked in front
    text = (ROOT / "website/mkdocs.yml").read_text(encoding="utf-8")
    extend = text[text.index("- Extend:") : text.index("- Troubleshoot:")]
    listed = re.findall(r"plugins/([\w-]+)\.md", extend)
    assert sorted(listed) == sorted(path.stem for path in (DOCS / "plugins").glob("*.md"))
    assert listed.index("graph-pass") < listed.index("template") < listed.index("gpu-template") < listed.index("hooks")
    assert "navigation.footer" in text and "LITZ_REPOSITORY" in text
