"""Tests of litz-triton-kernels."""

import pytest

pytest.importorskip("litz_triton_kernels")
