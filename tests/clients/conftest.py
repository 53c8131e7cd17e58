"""Tests of litz-clients."""

import pytest

pytest.importorskip("litz_clients")
