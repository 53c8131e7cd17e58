"""What a library call returned, with the strides that were planned."""

from __future__ import annotations

import pytest
import torch

from litz.runtime.wrapper_support import planned, planned_inside

SIZE, PLANNED = (4, 3, 1, 1), (3, 1, 3, 3)


@pytest.mark.parametrize("given", [(3, 1, 3, 3), (3, 1, 1, 1), (1, 4, 4, 4)], ids=["as planned", "lies so", "other"])
def test_strides_are_the_planned_ones(given):
    values = torch.randn(SIZE)
    for fresh in (False, True):
        tensor = torch.empty_strided(SIZE, given).copy_(values)
        found = planned(tensor, SIZE, PLANNED, fresh)
        assert found.stride() == PLANNED and torch.equal(found, values)
        assert (found.data_ptr() == tensor.data_ptr()) is (given != (1, 4, 4, 4))
        if not fresh:
            assert tensor.stride() == given, "somebody else's tensor"


def test_what_only_kernels_see_may_differ_where_nothing_lies():
    values = torch.randn(SIZE)
    tensor = torch.empty_strided(SIZE, (3, 1, 1, 1)).copy_(values)
    assert planned_inside(tensor, SIZE, PLANNED) is tensor
    other = planned_inside(torch.empty_strided(SIZE, (1, 4, 4, 4)).copy_(values), SIZE, PLANNED)
    assert other.stride() == PLANNED and torch.equal(other, values)


def test_zeros_without_memory_get_some():
    for made in (planned, planned_inside):
        found = made(torch._efficientzerotensor((2, 3)), (2, 3), (3, 1))
        assert not found._is_zerotensor() and torch.equal(found, torch.zeros(2, 3))


def test_empty_tensors_lie_anywhere():
    tensor = torch.empty_strided((0, 3), (1, 1))
    assert planned(tensor, (0, 3), (3, 1)).stride() == (3, 1)
    assert planned_inside(tensor, (0, 3), (3, 1)) is tensor
