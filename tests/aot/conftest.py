"""Tests of litz-aot."""

import pytest

pytest.importorskip("litz_aot")
