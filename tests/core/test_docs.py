"""The docs keep up with the code: every option is in them, links lead somewhere, what they name exists. The pages on
plugins have tests of their own (test_plugin_docs.py).

`python tests/core/test_docs.py` prints the table of options for docs/options.md.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from litz.options import MODES, OptionRow, core_options

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


@pytest.mark.parametrize("row", core_options(), ids=lambda row: row.name)
def test_every_option_is_documented(row: OptionRow) -> None:
    assert option_line(row) in (DOCS / "options.md").read_text(), "`python tests/core/test_docs.py` prints the table"


def test_no_option_is_documented_that_is_not() -> None:
    named = re.findall(r"^\| `([\w.]+)` \| .* \| `LITZ_", (DOCS / "options.md").read_text(), re.MULTILINE)
    assert set(named) == {row.name for row in core_options()}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_documented(mode: str) -> None:
    assert f"| `{mode}` |" in (DOCS / "options.md").read_text()


PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """Where links into a page may lead: its headings as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^):\s]+)\)", (DOCS / page).read_text()):
        path, _, anchor = link.partition("#")
        target = (DOCS / page).parent / path if path else DOCS / page
        assert target.exists(), f"{page} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page} links to {link}"


def test_names_in_the_docs_exist() -> None:
    """`litz.x.y`, `litz_plugins.x` and `litz_testing.x` in any page are modules, or things in them."""
    import importlib

    outside = [DOCS.parent / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md")]
    for page in [*DOCS.rglob("*.md"), *outside]:
        for name in set(re.findall(r"`(litz(?:_plugins|_testing)?(?:\.\w+)+)", page.read_text())):
            parts = name.split(".")
            for cut in range(len(parts), 0, -1):
                try:
                    found: object = importlib.import_module(".".join(parts[:cut]))
                except ModuleNotFoundError:
                    continue
                for part in parts[cut:]:
                    assert hasattr(found, part), f"{page.name}: {name}"
                    found = inspect.getattr_static(found, part, None) or getattr(found, part)  # or made when asked for
                break
            else:
                pytest.fail(f"{page.name}: {name}")


if __name__ == "__main__":
    print("\n".join(option_line(row) for row in core_options()))
