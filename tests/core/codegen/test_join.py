"""Several kernels in one launch: what they compute in Triton's interpreter, and what cannot be joined.

On a GPU they run in test_triton_gpu.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from litz.pipeline import generate, make_compiler, plan_schedule
from litz.targets.triton.compile import compile_kernel, make_target
from litz.targets.triton.join import join_sources
from support.interpreted import interpreted
from support.joined_cases import JOINED
from support.retarget import cuda_schedules
from support.triton_cases import CASES

pytestmark = pytest.mark.xdist_group("joined interpreter")  # the cases run once


@pytest.fixture(scope="module")
def problems() -> Mapping[str, str]:
    return interpreted("support.joined_cases")


@pytest.mark.parametrize("name", JOINED)
def test_computes_what_each_does_alone(name: str, problems: Mapping[str, str]) -> None:
    if "only 0-dimensional arrays can be converted" in problems[name]:
        pytest.skip("the interpreter of Triton 3.6 has no loops of variable length with NumPy 2.4 or later")
    assert problems[name] == ""


@pytest.mark.parametrize("name", JOINED)
def test_the_launch_is_as_large_as_all(name: str) -> None:
    joined, alone = JOINED[name].source, [CASES[each]().source for each in JOINED[name].names]
    for setting, whole in (("grid", sum), ("counters", sum), ("num_warps", max), ("asserts", any)):
        assert joined.settings[setting] == whole(each.settings[setting] for each in alone)
    assert len(joined.arguments) == len(joined.settings["pointers"])


def test_compiles_for_hopper() -> None:
    assert compile_kernel(JOINED["of other warps"].source, make_target((9, 0))).asm["cubin"]


def test_equal_kernels_share_a_function() -> None:
    assert JOINED["twice the same"].source.text.count("@triton.jit") == 2


def test_a_list_is_one_function_that_is_called_once():
    joined = JOINED["a list of few and many"]
    called = re.findall(r"^ +part\d+\(own", joined.source.text, re.M)
    assert len(joined.names) == 10 and len(called) == len(set(joined.names)) == 4


def test_a_list_has_one_body_on_hopper():
    """As many loads of 16 bytes as one of its tensors has alone, and all addresses among the parameters."""
    names = ["softmax"] * 12
    many = join_sources([CASES[name]().source for name in names], "kernel")
    few = join_sources([CASES["softmax"]().source], "kernel")
    assert many is not None and few is not None
    loads = [
        len(re.findall(r"ld\.global\S*", compile_kernel(each, make_target((9, 0))).asm["ptx"])) for each in (few, many)
    ]
    assert loads[0] == loads[1] > 0


def test_unaligned_buffers_are_those_of_each() -> None:
    source = CASES["bias"]().source
    marked = type(source)(**{**vars(source), "settings": {**source.settings, "unaligned": [1]}})
    joined = join_sources([source, marked], "kernel")
    assert joined is not None and joined.settings["unaligned"] == [len(source.arguments) + 1]


def test_sizes_that_are_symbols_are_left_alone() -> None:
    symbolic = next(case() for case in CASES.values() if case().source.settings["sizes"])
    assert join_sources([CASES["bias"]().source, symbolic.source], "kernel") is None


def test_kernels_that_ask_for_a_size_keep_their_launch():
    """Positions in an image of known size, whose scale is a symbol: no range and no buffer of the kernel has it."""
    compiler, x = make_compiler(), torch.randn(1, 2, 4, 3, requires_grad=True)
    schedules = cuda_schedules(
        lambda backend: torch.compile(lambda x: F.interpolate(x, size=(5, 1)), backend=backend, dynamic=True)(x),
        compiler,
    )
    for schedule in schedules:
        plan = plan_schedule(schedule, compiler)
        assert generate(plan, compiler).keys() == {kernel.name for kernel in plan.kernels}
