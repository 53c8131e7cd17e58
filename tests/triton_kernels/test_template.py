"""`triton_call`: what a launch needs, worked out from a kernel and its arguments; and the loop that a kernel takes
along. The example of docs/plugins/gpu-template.md has tests of its own, beside it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("triton")

import torch
import torch.nn.functional as F

from litz.ir import Program, Template, TensorRef
from litz.ir.build import call, load
from litz.ir.index import loop_var, to_expr
from litz.ir.pattern import Match, Value, bind
from litz.schedule.choices import user_of
from litz.targets.triton.compile import Variant
from litz_plugins import COUNTERS
from litz_testing.gpu_programs import gpu_program
from litz_triton_kernels.template import triton_call
from support import template_kernels as kernels
from support.triton_compiled import compile_only

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROJECT = Path(__file__).parents[2] / "plugins/src/litz_plugins/projects/gpu-template"


def product(rows: int = 64, dtype: torch.dtype = torch.float32, dynamic: Any = (), f: Any = torch.mm) -> Any:
    """The program of a product of [rows, 32] and [32, 1], and the product."""
    tensors = torch.empty(rows, 32, dtype=dtype, device="meta"), torch.empty(32, 1, dtype=dtype, device="meta")
    program = gpu_program(f, tensors, dynamic=dynamic)
    return program, next(each for each in program.operations if isinstance(each, Template))


def called(
    program: Program, template: Template, kernel: Any = None, args: Sequence[Any] | None = None, **own: Any
) -> Any:
    a, out = template.args[0], str(template.outputs[0])
    rows, constants = a.layout.size[0], {"FACTOR": 2.0, "TYPE": torch.float32, "BLOCK": 64, **own.pop("constants", {})}
    given = [a, out, rows, a.layout.stride[0]] if args is None else args
    return triton_call(
        kernel or kernels.first_column, given, own.pop("grid", 1), own.pop("only", constants), operation=template,
        program=program, **own,
    )  # fmt: skip


def test_numbers_that_are_known_are_in_the_text() -> None:
    made = called(*product())
    assert "rows=64, a_row=32, FACTOR=2.0, TYPE=tl.float32, BLOCK=64, INDEX=tl.int32)" in made.source.text
    assert made.source.arguments == (made.args[0].buffer, made.outputs[0])
    assert made.source.settings == {
        "pointers": ["*fp32", "*fp32"], "sizes": 0, "unaligned": [], "num_warps": 4, "num_stages": 3, "grid": 1,
        "limits": [], "limit": made.source.settings["limit"], "asserts": False,
    }  # fmt: skip
    assert json.loads(json.dumps(made.source.settings)) == made.source.settings
    assert made.target is torch.ops.aten.mm.default  # the contraction's own meaning


def test_sizes_that_are_symbols_are_arguments_and_decide_the_width_of_indices() -> None:
    made = called(*product(dynamic=[(0, 0)]))
    assert made.source.settings["sizes"] == 1 and len(made.source.arguments) == 3
    assert "INDEX=INDEX" in made.source.text and made.source.settings["limits"]
    for wide, width in ((False, "i32"), (True, "i64")):
        assert f"%s0: {width}" in compile_only(made.source, variant=Variant(wide=wide))["ttir"]


def test_what_is_too_large_for_32_bits_has_indices_of_64() -> None:
    assert "INDEX=tl.int64" in called(*product(rows=2**27)).source.text


def test_a_view_s_offset_is_added_to_the_pointer() -> None:
    program, template = product()
    a = template.args[0]
    shifted = TensorRef(a.buffer, type(a.layout)(a.layout.size, a.layout.stride, to_expr(8)))
    made = called(program, template, args=[shifted, str(template.outputs[0]), 64, 32])
    assert "a=p0 + 8" in made.source.text
    assert "cubin" in compile_only(made.source)


@pytest.mark.parametrize(
    ("dtype", "pointer"),
    [(torch.bfloat16, "*bf16"), (torch.float16, "*fp16"), (torch.float64, "*fp64")],
)
def test_pointers_have_tritons_types(dtype: torch.dtype, pointer: str) -> None:
    assert called(*product(dtype=dtype)).source.settings["pointers"] == [pointer] * 2


def test_infinities_and_types_are_constants() -> None:
    import triton.language as tl

    made = called(*product(), constants={"FACTOR": float("inf"), "TYPE": tl.float16, "BLOCK": 64})
    assert "FACTOR=float('inf'), TYPE=tl.float16" in made.source.text
    assert "cubin" in compile_only(made.source)


def test_the_text_changes_with_what_the_kernel_calls() -> None:
    """The text is the key of a build: a kernel of yesterday must not run for today's."""
    before = called(*product()).source.text
    changed = SimpleNamespace(fn=kernels.first_column.fn, arg_names=kernels.first_column.arg_names, cache_key="other")
    after = called(*product(), kernel=changed).source.text
    assert before == called(*product()).source.text and before != after


def test_counters_are_zeros_that_no_other_launch_touches() -> None:
    program, template = product()
    args = [template.args[0], str(template.outputs[0]), COUNTERS, 64]
    made = called(program, template, kernels.counted, args, only={"BLOCK": 16}, grid=4, counters=1)
    assert made.source.arguments[-1] == COUNTERS and made.source.settings["counters"] == 1
    assert made.source.settings["pointers"][-1] == "*i32" and made.source.settings["grid"] == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"args": [1, 2]}, "2 args for a, out, rows, a_row; its parameters are a, out,"),
        ({"constants": {"BLOK": 1}}, "it has no parameter 'BLOK'"),
        ({"constants": {"BLOCK": [64]}}, "the constant BLOCK is a list"),
    ],
)
def test_what_does_not_fit_the_kernel_is_an_error(change: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        called(*product(), **change)


def test_a_kernel_that_no_other_process_can_import_is_an_error() -> None:
    fn = mock.Mock(__module__="__main__", __name__="mine", __qualname__="mine")
    with (
        mock.patch("inspect.getsource", return_value=""),
        pytest.raises(TypeError, match=r"cannot import .*write the kernel at the top of a module of your package"),
    ):
        called(*product(), kernel=SimpleNamespace(fn=fn, arg_names=kernels.first_column.arg_names, cache_key="x"))


# --------------------------------------------------------------------------------------- the loop that is taken along

X = Value("load", name="result", words="plain uncast")
SILU = Value("mul", (X, Value("sigmoid", (X,))), words="uncast")


def test_a_name_that_is_there_twice_is_one_node() -> None:
    a, b = (load(name, (loop_var(0),), torch.float32) for name in "ab")
    assert bind(SILU, call("mul", a, call("sigmoid", a))) == {"result": a}
    assert bind(SILU, call("mul", call("sigmoid", a), a)) == {"result": a}
    assert bind(SILU, call("mul", a, call("sigmoid", b))) is None


def silu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(a @ b)


def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(a @ b)


def used_twice(a: torch.Tensor, b: torch.Tensor) -> Any:
    made = a @ b
    return F.silu(made), made


def flipped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(torch.flip(a @ b, (0,)))


@pytest.mark.parametrize(
    ("f", "why"),
    [
        (silu, ""),
        (other, "stores no"),
        (used_twice, "has no reader, or more than one"),
        (flipped, "reads other elements of .* than it stores"),
        (torch.mm, "has no reader"),
    ],
)
def test_the_only_loop_that_reads_the_result(f: Any, why: str) -> None:
    program, template = product(f=f)
    found = user_of(template, SILU, program)
    if why:
        with pytest.raises(AssertionError, match=why):
            assert isinstance(found, Match), found
    else:
        assert isinstance(found, Match) and found["result"].buffer == template.outputs[0]


# --------------------------------------------------------------------------------------------------------- on a device


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", [None, "max-autotune"])
@pytest.mark.parametrize("rows", [4096, 4099])
def test_the_documentation_s_kernel_on_a_gpu(rows: int, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "src"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    import litz_autotune.plugin
    import litz_my_gpu_template
    from litz import report
    from litz.backend import backend_with

    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(*s, device="cuda", generator=generator).bfloat16() for s in ((rows, 1024), (1024, 8)))
    more = {"autotune": litz_autotune.plugin.Autotune()} if mode else {}
    backend = backend_with(my_gpu_template=litz_my_gpu_template, **more)
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(silu, backend=backend, options={"max_autotune": bool(mode)})(a, b)
    exact = F.silu(a.double() @ b.double())
    error = (result.double() - exact).abs().max() / exact.abs().max()
    assert error < 2**-7, error
    record = reports[0].contractions[0]
    names = [each.name for each in record.implementations]
    assert any(name.startswith("thin product with silu") for name in names), names
    if mode is None:
        assert record.chosen.name == "thin product with silu 64 x 64"
