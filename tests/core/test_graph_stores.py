"""Graphs and kernels that plugins find and keep elsewhere: what one machine made another loads, and what is refused."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.cache import stores
from litz.cache.disk import Cache
from litz.driver.builtin import builtin_plugins
from litz.driver.compiler import stores_of
from litz.options import make_options
from litz_plugins import OptionSpec, PluginWarning, hookimpl, make_plugins, quarantine
from support.graph_cache import Runs, called_with

X = torch.randn(4, 37)
Kept = dict[tuple[str, str], bytes]


def fn(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1) + 1


class Store:
    """A plugin that keeps what it is given, and notes what it is asked for. compiled: graphs that were begun. litz's
    own library is left out: a process builds it once, in whichever test."""

    def __init__(self, kept: Kept | None = None) -> None:
        self.kept: Kept = {} if kept is None else kept
        self.asked: list[str] = []
        self.given: list[str] = []
        self.compiled: list[str] = []

    @hookimpl
    def litz_find_graph(self, kind: str, key: str) -> bytes | None:
        self.asked += [kind] * (kind != "native")
        return self.kept.get((kind, key))

    @hookimpl
    def litz_keep_graph(self, kind: str, key: str, content: bytes | None) -> None:
        if content is not None and kind != "native":
            self.given.append(kind)
            self.kept[kind, key] = content

    @hookimpl
    def litz_compile_started(self, graph: Any) -> None:
        self.compiled.append(graph.name)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    quarantine.forget()


def run(folder: Path, *plugins: object, **options: Any) -> list[str]:
    """Compiles and runs the function as a machine would whose disk is `folder`. Returns what reports say."""
    extra = [(f"s{n}", plugin) for n, plugin in enumerate(plugins)]
    runs = Runs(folder, make_plugins(builtin_plugins(), extra=extra, entry_points=(), seconds=0.5), options)
    got, _ = runs.run(called_with(X), fn)
    torch.testing.assert_close(got, fn(X))
    return runs.said


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """What a machine has left in a store."""
    store = Store()
    assert run(tmp_path_factory.mktemp("first"), store) == ["miss"]
    return store.kept


def test_another_machine_finds_the_graph_and_its_kernels(kept: Kept, tmp_path: Path) -> None:
    assert sorted(kind for kind, _ in kept) == ["cpp", "graph"]
    store = Store(dict(kept))
    assert run(tmp_path, store) == ["hit"]
    assert store.compiled == [] and store.given == [] and sorted(set(store.asked)) == ["cpp", "graph"]
    store.asked.clear()
    assert run(tmp_path, store) == ["hit"] and store.asked == []  # it lies on the disk now


def test_without_a_store_and_with_an_empty_one(tmp_path: Path) -> None:
    store = Store()
    assert run(tmp_path / "a") == ["miss"] and run(tmp_path / "b", store) == ["miss"]
    assert store.compiled and sorted(set(store.given)) == ["cpp", "graph"] == sorted(set(store.asked))


def test_nobody_is_asked_where_the_cache_is_off(tmp_path: Path) -> None:
    store = Store()
    assert run(tmp_path, store, cache=False, graph_cache=False) == ["off"]
    assert store.asked == store.given == []


def test_the_first_store_that_has_it(kept: Kept, tmp_path: Path) -> None:
    """What is damaged is as nothing: the next store is asked."""
    damaged, good = Store(dict.fromkeys(kept, b"{")), Store(dict(kept))
    assert run(tmp_path, Store(), damaged, good) == ["hit"] and good.compiled == []
    later = Store(dict(kept))
    assert run(tmp_path / "again", good, later) == ["hit"] and later.asked == []


def hang(**_: Any) -> Any:
    threading.Event().wait()


def fail(**_: Any) -> Any:
    raise ConnectionError("no such host")


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (fail, "ConnectionError: no such host"),
    "exits": (lambda **_: exit(3), "SystemExit"),
    "hangs": (hang, "it took more than 0.5 s"),
    "returns a path": (lambda **_: "/tmp/x", "returned str"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("hook", ["litz_find_graph", "litz_keep_graph"])
def test_a_plugin_that_fails_costs_the_store_alone(tmp_path: Path, hook: str, wrong: str) -> None:
    act, said = WRONG[wrong]
    if hook == "litz_keep_graph" and wrong == "returns a path":
        pytest.skip("what it returns is ignored")
    store, calls = Store(), list[str]()

    class Failing(Store):
        @hookimpl(specname=hook)
        def failing(self, kind: str, key: str) -> Any:
            calls.append(kind)
            return act()

    setattr(Failing, hook, None)
    failing = Failing()
    with pytest.warns(PluginWarning, match=f"what a plugin keeps.* 's0' failed in {hook}: .*{said}") as caught:
        assert run(tmp_path / "a", failing, store) == ["miss"]
    assert sum(issubclass(one.category, PluginWarning) for one in caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        assert run(tmp_path / "b", failing, store) == ["hit"]
    assert len(calls) <= 2 and len(failing.compiled) == 1, "the plugin's other hooks are as before"
    assert sorted(kind for kind, _ in store.kept) == ["cpp", "graph"]


def files_of(kept: Kept) -> tuple[tuple[str, str], dict[str, bytes]]:
    (place,) = (place for place in kept if place[0] == "graph")
    found = stores.unpack(kept[place])
    assert found is not None
    return place, dict(found)


def packed(files: dict[str, bytes], tmp_path: Path) -> bytes:
    folder = tmp_path / "packed"
    folder.mkdir()
    stores.write(files, folder)
    return stores.pack(folder)


CHANGES: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "no list": lambda files: {**files, "graph.json": b"3"},
    "no JSON": lambda files: {**files, "graph.json": b"{"},
    "no wrapper": lambda files: {name: data for name, data in files.items() if name != "wrapper.py"},
    "no key": lambda files: {name: data for name, data in files.items() if name != "key.json"},
    "half a list": lambda files: {**files, "graph.json": json.dumps({"functions": {}}).encode()},
    "a function that is not there": lambda files: {
        **files,
        "graph.json": json.dumps({**json.loads(files["graph.json"]), "functions": {"f": "no.such:f"}}).encode(),
    },
    "another key": lambda files: {**files, "key.json": b'[["graph", "another", ""]]'},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_such_entry_is_compiled(kept: Kept, tmp_path: Path, change: str) -> None:
    """A sum that agrees says nothing of the content: it is read as an entry of the key before it is put on the disk."""
    place, files = files_of(kept)
    store = Store({**kept, place: packed(CHANGES[change](files), tmp_path)})
    assert run(tmp_path / "cache", store) == ["miss"] and len(store.compiled) == 1
    assert store.given == ["graph"], "the right one takes its place"
    assert run(tmp_path / "other", store) == ["hit"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "manifest.json", "nul\0"])
def test_no_name_leads_elsewhere(kept: Kept, tmp_path: Path, name: str) -> None:
    place, _ = files_of(kept)
    table = json.loads(kept[place])
    table[name] = table["wrapper.py"]
    assert run(tmp_path / "cache", Store({**kept, place: json.dumps(table).encode()})) == ["miss"]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_option_that_changes_no_code_is_in_no_key(tmp_path: Path) -> None:
    """Where a store lies differs from machine to machine."""

    class Named(Store):
        @hookimpl
        def litz_register_options(self) -> list[OptionSpec]:
            return [
                OptionSpec("at", str, "", "where it lies", affects_code=False),
                OptionSpec("level", int, 1, "which code"),
            ]

    store = Named()
    assert run(tmp_path / "a", store, **{"s0.at": "here"}) == ["miss"]
    assert run(tmp_path / "b", store, **{"s0.at": "there"}) == ["hit"]
    assert run(tmp_path / "c", store, **{"s0.level": 2}) == ["miss"]


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    given: list[tuple[str, bytes | None]] = []

    class Told:
        @hookimpl
        def litz_keep_graph(self, kind: str, content: bytes | None) -> None:
            given.append((kind, content))

    plugins = make_plugins(extra=[("told", Told())], entry_points=())

    def broken(folder: Path) -> None:
        raise ZeroDivisionError

    cache = Cache(tmp_path, stores=stores_of(plugins, make_options()))
    with pytest.raises(ZeroDivisionError):
        cache.build("cpp", "k", broken)
    assert given == [("cpp", None)]
    cache.build("autotune", "k", lambda folder: (folder / "x").touch())
    assert given == [("cpp", None)], "what was measured stays where it was"
