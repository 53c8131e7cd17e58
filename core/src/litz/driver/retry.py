"""Compiles that go on without a plugin that failed (`on_plugin_error="disable"`): begun anew, from what was whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from litz.driver.compiler import Compiler
from litz_plugins.blame import LeftOut

T = TypeVar("T")


def starting_over(run: Callable[[Compiler], T], compiler: Compiler) -> T:
    """Returns what `run` makes with a compiler, begun anew each time that a plugin fails in it and is left out.

    What `run` begins with must still be whole then: nouns that a plugin was handed are (`litz_plugins.unchanged`).
    """
    while True:
        compiler = compiler.fresh()
        try:
            return run(compiler)
        except LeftOut:
            if compiler.fresh() is compiler:  # nobody is left out: it would go on for ever
                raise
