"""A third-party dist, built and installed by pip as a user would, seen through the `litz` command and the manager."""

import json

import pytest

from litz_plugins.scaffold import scaffold
from support.third_party import pip_install, run_python, write_dist


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder with the scaffold's plugin in it, built by setuptools and installed by pip."""
    root = tmp_path_factory.mktemp("third_party")
    scaffold(root / "project", "weaver", "cost-model")
    pip_install(root / "project", root / "site")
    return root / "site"


def list_plugins(*path, **environ):
    done = run_python("-m", "litz.cli.main", "plugins", "--json", path=path, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def run_manager(code, *path, **environ):
    return run_python("-c", f"from litz_plugins import make_plugins\n{code}", path=path, **environ)


def test_it_is_listed_with_what_it_adds(site):
    row = list_plugins(site)["weaver"]
    assert (row["status"], row["dist"], row["version"]) == ("external", "litz-weaver", "0.1.0")
    assert row["options"] == ["weaver.table"]
    assert set(row["hooks"]) == {"litz_register_options", "litz_estimate_runtime", "litz_cache_fingerprint"}


def test_its_estimate_is_used(site):
    code = """
from types import SimpleNamespace
from litz_plugins import Target
operation = SimpleNamespace(target_name="aten.topk.default", refs=())
print(make_plugins().estimate_runtime_from(operation, Target("cpu"), None))
"""
    out = run_manager(code, site).stdout
    assert "'weaver'" in out and "why='measured: 0 elements of aten.topk.default'" in out


def test_it_can_be_blocked(site):
    row = list_plugins(site, LITZ_DISABLE_PLUGINS="weaver,layout")["weaver"]
    assert (row["status"], row["hooks"], row["dist"]) == ("blocked", [], "litz-weaver")


def test_the_table_fits_80_columns(site):
    out = run_python("-m", "litz.cli.main", "plugins", path=(site,), COLUMNS="80").stdout
    assert "weaver" in out and "litz-weaver" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_broken_import_says_what_to_do(site, tmp_path):
    write_dist(tmp_path, "litz-broken", {"broken": "broken_module"}, {"broken_module": "import no_such_module"})
    done = run_manager("make_plugins()", tmp_path, site)
    assert done.returncode != 0
    assert "PluginLoadError: plugin 'broken' could not be loaded: ModuleNotFoundError" in done.stderr.replace(
        "litz_plugins.errors.", ""
    )
    assert "litz-broken 1.0" in done.stderr and "LITZ_DISABLE_PLUGINS=broken" in done.stderr
    assert list_plugins(tmp_path, site)["broken"]["status"] == "failed"


def test_a_duplicate_name_says_who(site, tmp_path):
    write_dist(tmp_path, "litz-impostor", {"weaver": "impostor"}, {"impostor": ""})
    done = run_manager("make_plugins()", tmp_path, site)
    assert done.returncode != 0
    assert "litz-impostor 1.0 (impostor)" in done.stderr and "litz-weaver 0.1.0 (litz_weaver)" in done.stderr
    command = run_python("-m", "litz.cli.main", "plugins", path=(tmp_path, site))
    assert command.returncode == 1
    assert "Traceback" not in command.stderr and "two plugins have the name 'weaver'" in command.stderr


def test_a_misspelt_hook_says_which_was_meant(tmp_path):
    source = """
        from litz_plugins import hookimpl

        @hookimpl
        def litz_register_pases(options):
            return []
    """
    write_dist(tmp_path, "litz-misspelt", {"misspelt": "misspelt_module"}, {"misspelt_module": source})
    done = run_manager("make_plugins()", tmp_path)
    assert done.returncode != 0
    assert "UnknownHookError" in done.stderr and "did you mean 'litz_register_passes'" in done.stderr
    assert "litz-misspelt 1.0" in done.stderr


def test_a_raising_hook_says_whose(tmp_path):
    source = """
        from litz_plugins import Pass, hookimpl

        @hookimpl
        def litz_register_passes(options):
            return [Pass("explode", "graph", explode)]

        def explode(graph, context):
            raise RuntimeError("boom")
    """
    write_dist(tmp_path, "litz-bomb", {"bomb": "bomb_module"}, {"bomb_module": source})
    done = run_manager("make_plugins(disable=['layout']).run_passes('graph', 'a graph', {})", tmp_path)
    assert "PluginHookError: plugin 'bomb' failed in pass 'explode' (graph stage): RuntimeError: boom" in done.stderr
    code = "print(make_plugins(disable=['layout'], on_plugin_error='disable').run_passes('graph', 'a graph', {}))"
    done = run_manager(code, tmp_path)
    assert done.stdout.strip() == "a graph", done.stderr
    assert "PluginWarning" in done.stderr
