"""Two processes with a gloo group, for every test here that communicates: importing torch costs seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as found:
        yield found
