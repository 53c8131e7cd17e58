"""Tests of the layout plugin: torch's compiler starts afresh in each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("litz_layout")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LITZ_LAYOUT_ENABLE", "1")
    torch.manual_seed(0)
    yield
