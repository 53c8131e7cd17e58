"""Tests of litz-operators."""

import pytest

pytest.importorskip("litz_operators")
