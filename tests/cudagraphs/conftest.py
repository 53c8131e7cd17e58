"""Tests of litz-cudagraphs."""

import pytest

pytest.importorskip("litz_cudagraphs")
