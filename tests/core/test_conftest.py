"""What tests/conftest.py promises: a run with the variable CI is as one without it."""

from __future__ import annotations

import os

import torch._functorch.config
from hypothesis import settings


def test_nothing_sees_that_this_is_ci() -> None:
    assert "CI" not in os.environ
    assert not torch._functorch.config.error_on_custom_op_aliasing


def test_hypothesis_makes_the_same_inputs_in_every_run() -> None:
    assert settings.default is not None and settings.default.derandomize and settings.default.deadline is None
