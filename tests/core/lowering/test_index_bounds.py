"""Indices out of range: an error wherever eager has one, and never memory outside of a buffer.

The table is `support/index_cases.py`. Programs run in the interpreter, which raises OutsideBufferError where a kernel
would read or write memory that is not its own, so that nothing here can end the process; and a part of the table as
C++, in one build, on inputs with guarded elements around them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from core.lowering.harness import copied, program_of
from litz.errors import IndexRangeError
from litz.ir.interpret import interpret
from litz_testing.fuzz.execute import FuzzCompiler
from support.index_cases import CASES, IndexCase
from support.own_plugins import operators
from support.triton_cases import CASES as TRITON

GUARD = 32


def outcome(function: Callable[[], Any]) -> list[Any] | Exception:
    """What a call gives, or what it raises."""
    try:
        return [None if value is None else value.detach() for value in tree_leaves(function())]
    except Exception as error:
        return error


def judge(case: IndexCase, value: Any, actual: list[Any] | Exception, expected: list[Any] | Exception | None) -> None:
    """expected: eager's outcome, None where eager cannot be asked."""
    if isinstance(actual, Exception):
        assert isinstance(actual, (IndexError, RuntimeError)), f"{value}: {actual!r}"
        assert expected is None or isinstance(expected, (IndexError, RuntimeError)), f"{value}: {actual!r}"
        return
    assert not isinstance(expected, Exception), f"{value}: {actual}, where eager raises {expected!r}"
    if expected is not None:
        torch.testing.assert_close(
            actual, expected, equal_nan=True, rtol=1e-4, atol=1e-4, msg=lambda m: f"{value}: {m}"
        )


def asked(case: IndexCase, value: Any) -> bool:
    """May eager be asked for this value, and does what it says count?"""
    return case.eager and not any(value == other or (value != value and other != other) for other in case.unlike)


@pytest.mark.parametrize("name", CASES)
def test_as_eager_or_an_error(name: str) -> None:
    case = CASES[name]
    program = program_of(case.function, *case.inputs(case.tried[0]), plugins=operators())
    for value in case.tried:
        expected = outcome(lambda v=value: case.function(*case.inputs(v))) if asked(case, value) else None
        judge(case, value, outcome(lambda v=value: interpret(program, list(case.inputs(v)))), expected)


DYNAMIC = ("index", "gather", "index_select.last", "take", "embedding.2d", "scatter_reduce.mean", "index_put",
           "nll_loss", "index_copy", "max_unpool2d", "masked_scatter", "cat",
           "grid_sample2d.bilinear.border")  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_with_symbolic_sizes(name: str) -> None:
    case = CASES[name]
    program = program_of(case.function, *case.inputs(case.tried[0]), dynamic=True, plugins=operators())
    for value in case.tried:
        expected = outcome(lambda v=value: case.function(*case.inputs(v))) if asked(case, value) else None
        judge(case, value, outcome(lambda v=value: interpret(program, inputs_of(program, case.inputs(v)))), expected)


def inputs_of(program: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors, in the order of the program's inputs; symbols among those follow from layouts."""
    assert all(isinstance(item, str) for item in program.inputs)
    return list(tensors)


@pytest.mark.parametrize("view", [((13,), (1,), 0), ((3,), (1,), 10), ((2, 2), (6, 6), 1)])
def test_as_strided_beyond_the_end_asks_the_storage(view: tuple[Any, ...]) -> None:
    """The tensor may be a part of a larger storage, into which as_strided may look; the library knows how large."""
    program = program_of(lambda x: x.as_strided(*view) + 1, torch.arange(20.0)[:12])
    base = torch.arange(20.0)
    torch.testing.assert_close(interpret(program, [base[:12]])[0], base[:12].as_strided(*view) + 1)
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        interpret(program, [torch.arange(12.0)])


def test_an_error_is_both_of_what_eager_raises() -> None:
    error = IndexRangeError("kernel0", "4", "dimension 0 in aten.gather")
    assert isinstance(error, IndexError) and isinstance(error, RuntimeError)
    assert str(error) == "kernel0: index out of range for size 4 of dimension 0 in aten.gather"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_triton_keeps_a_position_inside_where_the_assertion_is_compiled_out() -> None:
    text = TRITON["embedding"]().source.text
    assert "tl.device_assert" in text and "tl.where(tmp" in text
    assert "s0 > 0" in TRITON["dynamic-table"]().source.text


# ------------------------------------------------------------------------------------------------------------ compiled

COMPILED = ("index", "index.int32", "gather", "index_select", "embedding.grad", "index_put", "scatter_add",
            "scatter_reduce.mean", "index_copy", "index_fill", "put.add", "nll_loss.grad", "max_unpool2d",
            "adaptive_max_pool2d_backward", "reduced", "scanned", "cat", "pad", "sliced", "chosen", "uniform",
            "chained", "cast", "masked_scatter", "_unsafe_masked_index", "grid_sample2d.grad")  # fmt: skip


@dataclass
class _Program:
    """A case as FuzzCompiler takes programs."""

    case: IndexCase
    dynamic: bool = False
    by_dynamo: bool = False
    together: bool = False
    nests: bool = False

    @property
    def grad(self) -> bool:
        return self.case.grad

    def function(self) -> Callable[..., Any]:
        return lambda *inputs: tree_leaves(self.case.function(*inputs))


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor between elements that no result may have in it."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    wrong = float("nan") if tensor.dtype.is_floating_point else 1 if tensor.dtype == torch.bool else 77
    base = torch.full((count + 2 * GUARD,), wrong, dtype=tensor.dtype)
    found = base.as_strided(tensor.shape, tensor.stride(), GUARD + tensor.storage_offset())
    return found.copy_(tensor)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's storage. `bytes` asks torch for each alone."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def with_gradients(case: IndexCase, inputs: list[torch.Tensor], call: Callable[..., Any]) -> list[Any]:
    if not case.grad:
        return tree_leaves(call(*inputs))
    inputs = [value.requires_grad_() if value.is_floating_point() else value for value in inputs]
    outputs = tree_leaves(call(*inputs))
    asked_for = [value for value in inputs if value.requires_grad]
    return [*outputs, *torch.autograd.grad(sum(output.sum() for output in outputs), asked_for, allow_unused=True)]


def test_compiled_as_eager_or_an_error() -> None:
    compiler = FuzzCompiler(compiled=True)
    programs = {}
    for name in COMPILED:
        case = CASES[name]
        inputs = [copied(value) for value in case.inputs(1.0 if case.n is None else 1)]
        inputs = [value.requires_grad_(case.grad and value.is_floating_point()) for value in inputs]
        programs[name] = compiler.compile(_Program(case), inputs)  # type: ignore[arg-type]
        # A backward is compiled when it is first needed.
        with_gradients(case, inputs, lambda *given, program=programs[name]: program.run(given, "interpreted"))
    compiler.finish()
    for name, program in programs.items():
        case = CASES[name]
        for value in case.tried:
            plain = [copied(each) for each in case.inputs(value)]
            expected = outcome(lambda c=case, i=plain: with_gradients(c, i, c.function)) if asked(case, value) else None
            given = [guarded(each) for each in case.inputs(value)]
            before = [bits(each).clone() for each in given]
            actual = outcome(
                lambda c=case, i=given, p=program: with_gradients(c, i, lambda *inputs: p.run(inputs, "compiled"))
            )
            judge(case, f"{name} of {value}", actual, expected)
            assert not isinstance(actual, IndexRangeError) or "aten." in str(actual)
            for storage, each in zip(before, given, strict=True):
                assert torch.equal(storage, bits(each)), f"{name} of {value} writes to its inputs"
