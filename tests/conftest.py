"""Settings for every test: a cache of the test run's own, so that nothing built before decides a result."""

from __future__ import annotations

import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """One cache folder for the run, shared by its workers; LITZ_CACHE_DIR in the environment wins."""
    if "LITZ_CACHE_DIR" not in os.environ:
        os.environ["LITZ_CACHE_DIR"] = tempfile.mkdtemp(prefix="litz-test-cache-")
