"""Broken plugins: each ends in an error that names the plugin, or in a right result; with "disable" in a right result.

`PYTHONPATH=tests python tests/e2e/test_broken_plugins.py --count 500 --seed 3` tries more of them, and says how each
ended.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from litz import pipeline
from litz.driver.builtin import builtin_plugins
from litz_plugins import PluginHookError, PluginWarning, make_plugins
from support.broken_plugins import MUTATIONS, SECONDS, broken, unsafe
from support.good_plugins import GOOD, Good, inputs, program

COUNT = sum(map(len, MUTATIONS.values())) // 5
"""How many the test tries, of the ways to break a part of a plugin; `--count` tries more."""
OPTIONS = {"graph_cache": False, "cpp.qualify": False, "threads": 1}


def captured() -> tuple[torch.fx.GraphModule, Sequence[Any]]:
    """The program as dynamo hands it to a backend; the same for all plugins."""
    found: list[Any] = []

    def keep(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        found.append((gm, examples))
        return gm

    torch._dynamo.reset()
    torch.compile(program, backend=keep)(*inputs())
    return found[0]


def run(gm: torch.fx.GraphModule, plugin: object, on_error: str) -> tuple[str, Any]:
    """How a compile with the plugin ended, and the plugins: "right", "named", or what is wrong."""
    known: dict[str, Any] = {"extra": [("mine", plugin)], "entry_points": (), "seconds": SECONDS}
    plugins = make_plugins(builtin_plugins(), on_plugin_error=on_error, **known)  # type: ignore[arg-type]
    args = inputs()
    try:
        compiled = pipeline.compile_backend(gm, list(args), options=OPTIONS, plugins=plugins)
        results = compiled(*args)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        first = str(error).partition("\n")[0]
        return ("named" if "plugin 'mine'" in first else f"{type(error).__name__}: {first}"), plugins
    for mine, its in zip(results, program(*inputs()), strict=True):
        if (mine.shape, mine.dtype, mine.stride()) != (its.shape, its.dtype, its.stride()):
            return f"{mine.dtype} {tuple(mine.shape)} of strides {mine.stride()}", plugins
        if not torch.allclose(mine, its, rtol=1e-4, atol=1e-5):
            return "wrong numbers", plugins
    same = all(torch.equal(mine, its) for mine, its in zip(args, inputs(), strict=True))
    return ("right" if same else "its inputs were changed"), plugins


def ending(gm: torch.fx.GraphModule, plugin: Any, disabled: Any) -> tuple[str, str]:
    """How the compiles end, as it is and with "disable"."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain, _ = run(gm, plugin, "raise")
        caught.clear()
        without, plugins = run(gm, disabled, "disable")
    said = [item for item in caught if issubclass(item.category, PluginWarning)]
    left_out = plugins.listing()[-1].status == "failed"
    if without == "right" and len(said) != left_out:
        without = f"{len(said)} warnings, and the plugin is {'left out' if left_out else 'in use'}"
    return plain, without


@pytest.fixture(scope="module")
def graph() -> Any:
    return captured()[0]


def test_the_good_ones_are_good(graph: Any) -> None:
    for part, function in GOOD.items():
        status, plugins = run(graph, Good(**{part: function}).plugin(), "raise")
        assert (part, status) == (part, "right") and plugins.names()[-1] == "mine"


def test_broken_plugins_are_named_or_harmless(graph: Any) -> None:
    ends = {case.name: ending(graph, case.make(), case.make()) for case in broken(seed=1, count=COUNT)}
    assert {name: end for name, end in ends.items() if end[0] not in ("named", "right") or end[1] != "right"} == {}
    assert Counter(plain for plain, _ in ends.values())["named"] > COUNT * 0.8  # else the good ones are not broken


def test_nothing_outside_is_touched(graph: Any) -> None:
    ends = {case.name: ending(graph, case.make(), case.make()) for case in unsafe(seeds=2)}
    assert {name: end for name, end in ends.items() if end != ("named", "right")} == {}


def test_a_change_in_place_of_a_later_call_is_never_gone_on_from(graph: Any) -> None:
    calls: list[int] = []

    def library(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        made = GOOD["library"](a, b)
        if len(calls) > 1:
            b.zero_()  # an input, of which the second call keeps no copy
        return made

    known: dict[str, Any] = {"extra": [("mine", Good(library=library).plugin())], "entry_points": ()}
    plugins = make_plugins(builtin_plugins(), on_plugin_error="disable", **known)
    compiled = pipeline.compile_backend(graph, list(inputs()), options=OPTIONS, plugins=plugins)
    compiled(*inputs())
    with pytest.raises(PluginHookError, match=r"plugin 'mine' .*in place"):
        compiled(*inputs())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    (gm, _), begun, ends = captured(), time.time(), Counter[tuple[str, str]]()
    for case in broken(given.seed, given.count):
        end = ending(gm, case.make(), case.make())
        ends[end] += 1
        if end[0] not in ("named", "right") or end[1] != "right":
            print(f"{case.name}: {end[0]}; with disable: {end[1]}")
    for (plain, without), count in ends.most_common():
        print(f"{count:5}  {plain}; with disable {without}")
    print(f"{given.count} plugins in {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
