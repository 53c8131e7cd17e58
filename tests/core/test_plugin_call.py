"""Functions of plugins that graphs call: what they change in place is found, and put back after the first call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from litz.ir import Extern, Layout, TensorRef
from litz.origins.plugin_call import Owner, PluginCall
from litz.runtime.stored import function_at, place_of
from litz.schedule.owned import owned
from litz_plugins.errors import PluginHookError

OWNER = Owner("mine")


def clear(x: Any, y: Any, wrong: bool = True) -> torch.Tensor:
    """Adds what it is given; if `wrong`, it clears `y`, or the first of them."""
    first = y[0] if isinstance(y, (list, tuple)) else y
    result = x + first
    if wrong:
        first.zero_()
    return result


def clear_and_fail(x: torch.Tensor, y: torch.Tensor) -> None:
    y.zero_()
    raise ValueError("no")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_change_in_place_is_found_and_the_first_is_put_back(nested: bool, named: bool) -> None:
    x, y = torch.ones(2), torch.ones(2)
    arguments: Any = ((x,), {"y": [y] if nested else y}) if named else ((x, [y] if nested else y), {})
    call = PluginCall(OWNER, clear)
    with pytest.raises(PluginHookError, match=r"'mine' failed in the call of clear: it changed its argument") as raised:
        call(*arguments[0], **arguments[1])
    assert y.tolist() == [1, 1] and raised.value.inputs_whole
    assert call(*arguments[0], wrong=False, **arguments[1]).tolist() == [2, 2]
    assert PluginCall(OWNER, clear) == call  # whether it was called is no part of what it is
    with pytest.raises(PluginHookError, match="in place") as raised:
        call(*arguments[0], **arguments[1])
    assert not raised.value.inputs_whole  # nobody kept a copy


def test_what_fails_after_a_change_is_put_back_too() -> None:
    x, y = torch.ones(2), torch.ones(2)
    with pytest.raises(PluginHookError, match="ValueError: no") as raised:
        PluginCall(OWNER, clear_and_fail)(x, y)
    assert y.tolist() == [1, 1] and raised.value.inputs_whole


def test_later_calls_of_plain_arguments() -> None:
    x, y, wrong = torch.ones(2), torch.ones(2), False
    call = PluginCall(OWNER, lambda x, y: clear(x, y, wrong))
    assert call(x, y).tolist() == call(x, y).tolist() == [2, 2]
    with torch.inference_mode():
        assert call(torch.ones(2), y).tolist() == [2, 2]  # of which torch counts no writes
    wrong = True
    with pytest.raises(PluginHookError, match="in place") as raised:
        call(x, y)
    assert not raised.value.inputs_whole


def test_what_an_operation_declares_may_be_written() -> None:
    layout = Layout.contiguous((2,))
    args, kwargs = (TensorRef("x", layout),), {"y": (TensorRef("y", layout),)}
    operation = Extern("op0", torch.device("cpu"), clear, args, kwargs, outputs=("z",), mutates=("y",))
    call = owned(operation, OWNER).target
    assert call.writes == ("y",) and function_at(place_of(call)).writes == ("y",)
    x, y = torch.ones(2), torch.ones(2)
    assert call(x, y=(y,)).tolist() == [2, 2] and y.tolist() == [0, 0]
    with pytest.raises(PluginHookError, match="its argument 2 in place"):
        PluginCall(OWNER, clear)(x, y)
