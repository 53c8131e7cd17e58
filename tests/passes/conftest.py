"""Tests of litz-passes."""

import pytest

pytest.importorskip("litz_passes")
