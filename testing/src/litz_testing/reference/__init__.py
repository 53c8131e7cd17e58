"""The reference pages of docs/plugins/, made from the code: hooks, records, what plugins may import, the IR's ops.

`python -m litz_testing.reference FOLDER` writes them; `PAGES` makes their texts, to compare with those in a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .api import api_page, records_page
from .hooks import hooks_page
from .ops import ops_page

PAGES: Mapping[str, Callable[[], str]] = {
    "hooks.md": hooks_page,
    "records.md": records_page,
    "api.md": api_page,
    "ir-ops.md": ops_page,
}
"""What makes the text of each page, by the name of its file."""

__all__ = ["PAGES"]
