"""What a wrapper does with its inputs before the first step: a target may want them aligned to 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

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


class Starts(TorchDispatchMode):
    """Notes how many bytes after a multiple of 16 the tensors of attention start."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.seen += [t.data_ptr() % 16 for t in (*args, *(kwargs or {}).values()) if isinstance(t, Tensor)]
        return func(*args, **(kwargs or {}))


def attend_to_views(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The query is an input, the keys a view of one, the values a view of what the program makes."""
    values = y.sin().flatten()[1:65].view(1, 2, 8, 4)
    return scaled_dot_product_attention(x, y.flatten()[2:66].view(1, 2, 8, 4), values, attn_mask=mask)


def test_attention_gets_aligned_tensors() -> None:
    plugins = make_plugins(builtin_plugins(), extra=[("aligned", AlignedCpu())], entry_points=())
    compiler = pipeline.make_compiler(None, None, plugins)
    starts = Starts()

    def compile_graph(graph: Graph) -> Callable[[list[Any]], Any]:
        compiled = pipeline.compile_graph(graph, compiler)

        def call(arguments: list[Any]) -> Any:
            with starts:
                return compiled(arguments)

        return call

    def backend(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        rules = pipeline.decompositions(compiler)
        return compile_with_aot(module, examples, compile_graph=compile_graph, decompositions=rules)

    compiled, base = torch.compile(attend_to_views, backend=backend), torch.randn(300)
    for offset in (0, 1, 3, 4):
        parts = base[offset:].split([64, 72, 64, 100 - offset])[:3]
        inputs = [part.view(size) for part, size in zip(parts, [(1, 2, 8, 4), (1, 2, 9, 4), (8, 8)], strict=True)]
        torch.testing.assert_close(compiled(*inputs), attend_to_views(*inputs))
    assert starts.seen == [0] * 16


def attend(x: Tensor, y: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return scaled_dot_product_attention(x, y, y, attn_mask=mask, is_causal=causal)


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_of_what_starts_anywhere(dtype: torch.dtype, mode: str, masked: bool) -> None:
    """Eager's own kernels are wrong here, or end the process's use of the device."""
    compiled = torch.compile(attend, backend="litz", mode=mode)
    base = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0)).to(dtype)
    for offset in (0, 2, 1, 8):
        x, y = (row[offset : offset + 8192].view(2, 4, 64, 16) for row in base.cuda())
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        mask = base[0, offset : offset + 4096].view(64, 64).cuda() if masked else None
        result = compiled(x, y, mask, not masked)
        result.sum().backward()
        wide = [t.detach().double().cpu().requires_grad_() for t in (x, y)]
        expected = attend(*wide, None if mask is None else mask.double().cpu(), not masked)
        expected.sum().backward()
        bound = 2e-2 if dtype == torch.bfloat16 else 2e-5
        for got, want in zip((result, x.grad, y.grad), (expected, *(t.grad for t in wide)), strict=True):
            assert got is not None and want is not None
            assert float((got.double().cpu() - want).abs().max()) < bound * max(1.0, float(want.abs().max()))


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_on_a_gpu(offset: int, mode: str) -> None:
    run = torch.compile(ends_and_sum, backend="litz", mode=mode)
    for number in range(6):
        x = (torch.arange(100.0, device="cuda") + number)[offset : offset + 63].view(9, 7)
        torch.testing.assert_close(run(x), ends_and_sum(x))
