"""The hooks' documentation says what the table of counts says. `tests/e2e/test_hook_counts.py` counts."""

from __future__ import annotations

import inspect
import re

import pytest

from litz_plugins import hookspecs
from litz_plugins.calls import CALLS, since
from litz_plugins.validate import HOOKS
from litz_plugins.versions import API_VERSION, minor

COMBINED = {
    "concatenated": "concatenated",
    "merged": "merged by",
    "sorted": "concatenated, then sorted",
    "first": "the first result that is not None",
    "by plugin": "by plugin",
    "nested": "one around the other",
    "told": "every plugin is told",
}


def test_every_hook_has_a_row() -> None:
    assert set(CALLS) == set(HOOKS)


@pytest.mark.parametrize("hook", sorted(CALLS))
def test_documentation_agrees(hook: str) -> None:
    text = " ".join((inspect.getdoc(getattr(hookspecs, hook)) or "").split())
    assert f"Called: {CALLS[hook]}" in text
    assert re.search(rf"Combined: {COMBINED[CALLS[hook].combined]}", text)
    assert minor(since(hook)) <= minor(API_VERSION)
