"""Long tables of the documentation's site sort by a heading and keep the rows with the words that somebody types."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browser import open_browser

ROOT = Path(__file__).parents[2]
CELLS = """return [...document.querySelectorAll(arguments[0] + " tbody tr")].filter((row) => !row.hidden)
  .map((row) => row.cells[arguments[1]].textContent)"""


def page(folder: Path) -> Path:
    """Three tables: of 20, of 8 and of 7 rows. The columns: a name, a time with its unit, a day, a mean or nothing."""
    times = ["2.50 ms", "900.0 µs", "10.1 ms", "1.00 ms"]
    body = ""
    for name, count in (("long", 20), ("short", 8), ("tiny", 7)):
        rows = "".join(
            f"<tr><td>model {number % 4}{' H200' * (number == 3)}</td><td>{times[number % 4]}</td>"
            f"<td>2026-11-{30 - number:02}</td><td>{'' if number % 5 else 0.1 * number:}</td></tr>"
            for number in range(count)
        )
        head = "<thead><tr><th>model</th><th>time</th><th>day</th><th>mean</th></tr></thead>"
        body += f"<div id={name}><table>{head}<tbody>{rows}</tbody></table></div>"
    file = folder / "page.html"
    script = (ROOT / "docs/assets/tables.js").read_text(encoding="utf-8")
    file.write_text(
        f"<!doctype html><meta charset=utf-8><script>{script}</script><main>{body}</main>", encoding="utf-8"
    )
    return file


@pytest.mark.nightly
def test_tables_sort_and_keep_rows(tmp_path: Path) -> None:
    with open_browser() as browser:
        browser.show(page(tmp_path))

        def cells(table: str, column: int) -> list[str]:
            return browser.run(CELLS, f"#{table}", column)

        def sort(table: str, column: int) -> None:
            browser.run(
                "document.querySelectorAll(arguments[0] + ' th button')[arguments[1]].focus()", f"#{table}", column
            )
            browser.keys("Enter")

        assert browser.run("return document.querySelectorAll('#tiny button, #tiny input, #short input').length") == 0
        sort("short", 1)
        assert cells("short", 1) == ["900.0 µs"] * 2 + ["1.00 ms"] * 2 + ["2.50 ms"] * 2 + ["10.1 ms"] * 2
        sort("short", 1)
        assert cells("short", 1)[:3] == ["10.1 ms", "10.1 ms", "2.50 ms"]
        sort("short", 2)
        assert cells("short", 2) == [f"2026-11-{day}" for day in range(23, 31)]
        sort("short", 3)
        assert cells("short", 3)[0] == "0.0" and cells("short", 3)[2:] == [""] * 6
        sort("short", 3)
        assert cells("short", 3)[0] == "0.5" and cells("short", 3)[2:] == [""] * 6

        browser.run("document.querySelector('#long input').focus()")
        browser.keys("h200 model")
        assert cells("long", 0) == ["model 3 H200"]
        assert browser.run("return document.querySelector('#long output').textContent") == " 1 of 20 rows"
        assert browser.errors() == []
