"""The notebook: as a page of the site, and run. `python -m website.notebook` runs it and keeps what it prints.

In: a file in Jupyter's format. No Jupyter is needed: cells of code are Python that prints.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def cells(path: Path) -> list[Mapping[str, Any]]:
    """The cells of the notebook, each as the file has it."""
    found: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def as_markdown(path: Path) -> str:
    """The notebook's text as Markdown."""
    return "\n\n".join(part for cell in cells(path) for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield f"```text\n{''.join(output['text']).rstrip()}\n```"


def run(path: Path) -> list[str]:
    """What each cell of code prints, all cells run in order in one namespace. Errors: whatever a cell raises."""
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    printed = []
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)
            printed.append(out.getvalue())
    return printed


def store(path: Path) -> None:
    """Runs the notebook, and writes what its cells print into the file."""
    text = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in text["cells"] if cell["cell_type"] == "code"]
    for number, (cell, printed) in enumerate(zip(code, run(path), strict=True), 1):
        cell["execution_count"] = number
        lines = printed.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    path.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store(Path(__file__).parents[1] / "docs" / "first_steps.ipynb")
