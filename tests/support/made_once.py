"""Tests that share what a fixture of their module makes once share a worker, too: else each worker makes it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

WIDE = ("module", "package", "session")
"""Scopes of fixtures that several tests share."""


def share_workers(items: Iterable[pytest.Item]) -> None:
    """Gives the tests of a module that use such a fixture of the module's own, directly or not, one `xdist_group`. A
    test that has a group stays in it."""
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("xdist_group"):
            module = item.nodeid.partition("::")[0]
            found = (made[-1] for made in item._fixtureinfo.name2fixturedefs.values() if made)
            if any(each.scope in WIDE and each.baseid.partition("::")[0] == module for each in found):
                item.add_marker(pytest.mark.xdist_group(module))
