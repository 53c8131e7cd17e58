"""Fixtures for the tests of a plugin.

One line in ``conftest.py`` loads them::

    pytest_plugins = ["litz_plugins.pytest_plugin"]

(Where litz-plugins is installed, an entry point has loaded this already, and the line does no harm.) Then::

    def test_it_is_well_formed(check_litz_plugin):
        check_litz_plugin(my_plugin)

    def test_its_pass(litz_harness):
        harness = litz_harness(my_plugin, options={"my_plugin.level": 2})
        assert harness.run_passes("program", program) == expected

    def test_it_conforms(check_litz_conformance):
        check_litz_conformance(my_plugin)

Each fixture is the function of `litz_plugins.testing`. Those that compile put a test's kernels and graphs into a cache
of the test run, and not into the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from litz_plugins import testing


@pytest.fixture
def check_litz_plugin() -> Callable[..., testing.PluginCheck]:
    """Returns `litz_plugins.testing.check_plugin`."""
    return testing.check_plugin


@pytest.fixture
def litz_harness() -> Callable[..., testing.PluginHarness]:
    """Returns `litz_plugins.testing.make_test_plugins`."""
    return testing.make_test_plugins


@pytest.fixture(scope="session")
def litz_test_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets a cache of kernels and graphs for this run alone, unless LITZ_CACHE_DIR names one."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("LITZ_CACHE_DIR"):
            patch.setenv("LITZ_CACHE_DIR", str(tmp_path_factory.mktemp("litz-cache")))
        yield


@pytest.fixture
def check_litz_conformance(litz_test_cache: None) -> Callable[..., Any]:
    """Returns `litz_plugins.testing.check_conformance`."""
    return testing.check_conformance
