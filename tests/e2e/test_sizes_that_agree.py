"""Ops of which two sizes have to agree, where one hangs on data and torch asserts nothing about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.config


def data(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def rows(x: torch.Tensor) -> torch.Tensor:
    """A row of two for each positive element."""
    found = (x > 0).nonzero()
    return torch.cat([found, found + 1], 1).float()


THREE, NONE = torch.arange(6.0).reshape(3, 2), torch.zeros(3, 2, dtype=torch.int64)
WHERE = torch.tensor([3, 0, 1])
FOR_THREE: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_add": lambda x: torch.index_add(rows(x), 1, torch.tensor([0, 1]), THREE),
    "index_copy": lambda x: torch.index_copy(rows(x), 1, torch.tensor([0, 1]), THREE),
    "index_add-rows": lambda x: torch.index_add(torch.ones(5, 2), 0, WHERE, rows(x)),
    "index_put": lambda x: torch.index_put(torch.ones(5, 2), (WHERE,), rows(x)),
    "index_put-add": lambda x: torch.index_put(torch.ones(5, 2), (WHERE,), rows(x), accumulate=True),
    "mask": lambda x: torch.index_put(THREE, (rows(x)[:, 0] > 1,), torch.tensor(1.0)),
    "select_scatter": lambda x: torch.select_scatter(THREE, rows(x)[:, 0], 1, 0),
    "slice_scatter": lambda x: torch.slice_scatter(torch.ones(6, 2), rows(x), 0, 1, 4),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(torch.ones(3, 4), rows(x)[:, 1]),
}
FOR_THREE_OR_MORE: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter": lambda x: torch.scatter(rows(x), 1, NONE, THREE),
    "scatter_add": lambda x: torch.scatter_add(rows(x), 1, NONE, THREE),
    "scatter_value": lambda x: torch.scatter(rows(x), 1, NONE, 3.0),
    "scatter_source": lambda x: torch.scatter(THREE, 1, NONE, rows(x)),
    "gather": lambda x: torch.gather(rows(x), 1, NONE),
}


@pytest.mark.ci_cases("index_add", "index_put", "select_scatter", "scatter", "gather")
@pytest.mark.parametrize("name", [*FOR_THREE, *FOR_THREE_OR_MORE])
def test_sizes_of_data_that_have_to_agree_are_checked(name: str) -> None:
    """A loop over three rows read and wrote beyond the end of a tensor that had two in this run (s52n:1017)."""
    function = FOR_THREE.get(name) or FOR_THREE_OR_MORE[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="litz", fullgraph=True, options={"debug": True})
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = compiled(data(1, 2, -1, 3))
    torch.testing.assert_close(found, function(data(1, 2, -1, 3)))
    for x in (data(1, 2, -1, -3), data(-1, -1, -1, -1), data(1, 2, 3, 4)):
        if name in FOR_THREE or x.min() < 0:
            with pytest.raises((RuntimeError, IndexError)) as eager:
                function(x)
            with pytest.raises(eager.type, match=r": u\d+ = [024]\b"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), function(x))
