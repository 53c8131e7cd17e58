"""What a library call returned, with the strides that were planned."""

from __future__ import annotations

import pytest
import torch

from litz.runtime.torch_runtime import view
from litz.runtime.wrapper_support import number_on, planned, planned_inside, reuse

SIZE, PLANNED = (4, 3, 1, 1), (3, 1, 3, 3)


@pytest.mark.parametrize("given", [(3, 1, 3, 3), (3, 1, 1, 1), (1, 4, 4, 4)], ids=["as planned", "lies so", "other"])
def test_strides_are_the_planned_ones(given):
    values = torch.randn(SIZE)
    tensor = torch.empty_strided(SIZE, given).copy_(values)
    found = planned(tensor, SIZE, PLANNED)
    assert found.stride() == PLANNED and torch.equal(found, values)
    assert (found.data_ptr() == tensor.data_ptr()) is (given != (1, 4, 4, 4))
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64], ids=str)
def test_memory_is_taken_over_from_where_it_starts(dtype):
    dead = torch.zeros(20, requires_grad=True)[4:16]
    found = reuse(dead, (2, 3), (3, 1), dtype)
    assert found.dtype == dtype and found.shape == (2, 3) and found.stride() == (3, 1)
    assert found.data_ptr() == dead.data_ptr() and not found.requires_grad and not found._is_view()


def test_a_view_starts_where_its_base_does():
    base = torch.arange(24.0)[2:].requires_grad_()
    found = view(base, (3, 2), (1, 4), 5)
    torch.testing.assert_close(found, base.detach().as_strided((3, 2), (1, 4), 7), rtol=0, atol=0)
    assert not found.requires_grad and not found._is_view()


@pytest.mark.parametrize(
    "number",
    [
        torch.tensor(0.1),
        torch.tensor(0.1, dtype=torch.bfloat16),
        torch.tensor(-0.0),
        torch.tensor(float("-inf"), dtype=torch.float64),
        torch.tensor(2**62 + 1),
        torch.tensor(True),
        torch.tensor(200, dtype=torch.uint8),
        torch.tensor(0.5, requires_grad=True),
    ],
    ids=str,
)
def test_a_number_is_the_same_on_another_device(number):
    found = number_on(torch.device("cpu"), number)
    assert found.dtype == number.dtype and found.shape == () and not found.requires_grad
    assert torch.equal(found, number) and torch.equal(torch.signbit(found), torch.signbit(number))
    assert found.data_ptr() != number.data_ptr()
    assert number_on(torch.device("meta"), number).device.type == "meta"
