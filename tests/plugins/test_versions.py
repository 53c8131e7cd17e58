"""What a plugin asks of litz-plugins: read from its dist's metadata, and an error before anything is imported."""

from __future__ import annotations

from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

import litz_plugins
from litz_plugins import API_VERSION, PluginVersionError, PluginWarning, make_plugins
from litz_plugins.versions import minor, unmet
from support.third_party import write_dist


@pytest.mark.parametrize(
    ("requirements", "version", "missing"),
    [
        (["litz-plugins>=1.4"], "1.2.0", ">=1.4"),
        (["litz-plugins>=1.2"], "1.2.0", ""),
        (["LITZ_plugins ~= 1.1"], "1.2.0", ""),
        (["litz-plugins<1.2,>=1.0"], "1.2.0", "<1.2,>=1.0"),
        (["litz-plugins==1.2.0"], "1.2.1", "==1.2.0"),
        (["litz-plugins>=1.2"], "1.2.0.dev3", ">=1.2"),  # what 1.2 will be is not there yet
        (["litz-plugins>=1.1"], "1.2.0.dev3", ""),
        (["litz-plugins"], "1.2.0", ""),
        (["torch>=99", "litz-plugins-extra>=9"], "1.2.0", ""),
        (["litz-plugins>=9; extra == 'new'"], "1.2.0", ""),
        (["litz-plugins>=9; python_version > '3'"], "1.2.0", ">=9"),
        (["litz-plugins @ file:///somewhere"], "1.2.0", ""),
        (["litz-plugins >=> 9"], "1.2.0", ""),
        ([], "1.2.0", ""),
    ],
)
def test_what_is_missing(requirements: list[str], version: str, missing: str) -> None:
    assert unmet(requirements, version) == missing


def entry_points(site: Path) -> list[EntryPoint]:
    return [point for dist in distributions(path=[str(site)]) for point in dist.entry_points]


def test_a_plugin_for_a_later_version_is_not_imported(tmp_path: Path) -> None:
    source = {"later_plugin": "raise RuntimeError('imported')"}
    write_dist(tmp_path, "litz-later", {"later": "later_plugin"}, source, requires=["torch", "litz-plugins>=1.4"])
    with pytest.raises(PluginVersionError) as caught:
        make_plugins(entry_points=entry_points(tmp_path))
    text = str(caught.value)
    assert f"plugin 'later' needs litz-plugins >=1.4, has {litz_plugins.__version__}" in text
    for part in ("litz-later 1.0", "pip install 'litz-plugins>=1.4'", "LITZ_DISABLE_PLUGINS=later"):
        assert part in text


def test_with_disable_it_is_left_out(tmp_path: Path) -> None:
    write_dist(tmp_path, "litz-later", {"later": "later_plugin"}, {}, requires=["litz-plugins>=1.4"])
    with pytest.warns(PluginWarning, match=r"needs litz-plugins >=1\.4"):
        plugins = make_plugins(entry_points=entry_points(tmp_path), on_plugin_error="disable")
    (row,) = plugins.listing()
    assert row.status == "failed" and "needs litz-plugins" in row.error


def test_this_version() -> None:
    assert litz_plugins.__version__.startswith(f"{API_VERSION}.")
    assert minor(API_VERSION) == minor(litz_plugins.__version__)
    pyproject = Path(__file__).parents[2] / "plugins" / "pyproject.toml"
    assert f'version = "{litz_plugins.__version__}"' in pyproject.read_text()
