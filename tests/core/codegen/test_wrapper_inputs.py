"""What a wrapper does with its inputs before the first step: a target may want them aligned to 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from litz import pipeline
from litz.capture.aot import compile_with_aot
from litz.capture.graph import Graph
from litz.driver.builtin import builtin_plugins
from litz.target import describe_cpu
from litz.targets.cpp.codegen import CppCodegen
from litz_plugins import OptionsView, Target, TargetSpec, hookimpl
from litz_plugins.manager import make_plugins
from support.compare import NO_GPU


class AlignedCpu:
    """The CPU, with kernels that read aligned inputs only, as those of a GPU do."""

    @staticmethod
    def describe(device: torch.device, options: OptionsView | None = None) -> Target:
        return replace(describe_cpu(device, options), aligned=True)

    @hookimpl
    def litz_register_targets(self) -> list[TargetSpec]:
        return [TargetSpec("cpu", self.describe, CppCodegen())]


def ends_and_sum(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A view of the input, a number computed of it, and the input."""
    return x[:, 1::3], (x * x).sum(), x.t()


def parts_and_sum(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A view by a call of torch's, a number computed of the input, and a view of that view."""
    parts = torch.view_as_real(torch.view_as_complex(x))
    return parts, (x * x).sum(), parts[1:]


@pytest.mark.each_value
@pytest.mark.parametrize(("fn", "size"), [(ends_and_sum, (10, 7)), (parts_and_sum, (5, 7, 2))])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_view_of_an_unaligned_input_is_of_the_input(
    offset: int, fn: Callable[..., Any], size: tuple[int, ...]
) -> None:
    """AOTAutograd may cut the caller's view out of the input's storage, from the place that litz's view has in its own.
    A view of the aligned copy had the copy's place: the caller got values from `offset` elements before."""
    plugins = make_plugins(builtin_plugins(), extra=[("aligned", AlignedCpu())], entry_points=())
    compiler = pipeline.make_compiler(None, None, plugins)
    returned: list[Tensor] = []

    def compile_graph(graph: Graph) -> Callable[[list[Any]], Any]:
        compiled = pipeline.compile_graph(graph, compiler)

        def call(arguments: list[Any]) -> Any:
            returned[:] = compiled(arguments)
            return returned

        return call

    def backend(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        rules = pipeline.decompositions(compiler)
        return compile_with_aot(module, examples, compile_graph=compile_graph, decompositions=rules)

    x = torch.arange(101.0)[2 * offset : 2 * offset + 70].view(size)
    expected = fn(x)
    torch.testing.assert_close(torch.compile(fn, backend=backend, dynamic=True)(x), expected)
    assert [part.storage_offset() for part in returned] == [part.storage_offset() for part in expected]
    assert [part.data_ptr() for part in returned[::2]] == [part.data_ptr() for part in expected[::2]]


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_on_a_gpu(offset: int, mode: str) -> None:
    run = torch.compile(ends_and_sum, backend="litz", mode=mode)
    for number in range(6):
        x = (torch.arange(100.0, device="cuda") + number)[offset : offset + 63].view(9, 7)
        torch.testing.assert_close(run(x), ends_and_sum(x))
