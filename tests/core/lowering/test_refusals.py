"""What eager's kernels refuse is refused by them, with their error, and not computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from core.lowering.harness import program_of
from litz.ir.interpret import interpret

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{
        name: getattr(F, name)
        for name in ("gelu", "silu", "mish", "hardswish", "hardsigmoid", "softplus", "logsigmoid", "hardshrink", "celu")
    },
    "glu": lambda x: F.glu(x, 1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "frac": torch.frac,
    "round": torch.round,
    "round_decimals": lambda x: torch.round(x, decimals=1),
    "lerp": lambda x: torch.lerp(x, x, 2.0),
    "logaddexp": lambda x: torch.logaddexp(x, x),
    "hypot": lambda x: torch.hypot(x, x),
    "nextafter": lambda x: torch.nextafter(x, x),
    "abs": torch.abs,
    "floor": torch.floor,
    "clamp": lambda x: torch.clamp(x, min=False),
    "pow": lambda x: torch.pow(x, x),
    "fmod": lambda x: torch.fmod(x, x),
    "remainder": lambda x: torch.remainder(x, x),
    "shift": lambda x: x << x,
    "divide": lambda x: torch.div(x, x, rounding_mode="trunc"),
    "dot": lambda x: torch.dot(x[0, 0, 0], x[0, 0, 1]),
    "reflection": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "unfold": lambda x: F.unfold(x, 2),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x),
    "grid_sample": lambda x: F.grid_sample(x, x[..., :2].permute(0, 2, 1, 3), align_corners=True),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_decides_which_types_it_takes(name: str, dtype: torch.dtype) -> None:
    program, x = PROGRAMS[name], torch.arange(1, 65).reshape(1, 4, 4, 4).to(dtype)
    try:
        expected = program(x)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            interpret(program_of(program, x), [x])
        if "not implemented for" in str(error) and "not implemented for" in str(caught.value):
            assert type(caught.value) is type(error) and str(caught.value) == str(error)
        return
    (actual,) = interpret(program_of(program, x), [x])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_bool_beside_a_number_is_a_number() -> None:
    x = torch.tensor([True, False])
    for program in (lambda x: torch.pow(x, 2), lambda x: torch.clamp(x, min=2), lambda x: torch.fmod(x, 2)):
        (actual,) = interpret(program_of(program, x), [x])
        torch.testing.assert_close(actual, program(x))
