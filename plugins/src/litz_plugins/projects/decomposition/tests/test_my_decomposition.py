import pytest
import torch

import litz_my_decomposition
from litz import report
from litz.backend import backend_with
from litz_plugins.testing import check_conformance, check_plugin

BACKEND = backend_with(my_decomposition=litz_my_decomposition)
BOUNDARIES = torch.tensor([-1.0, 0.0, 0.5, 0.5, 2.0])


def compiled(f, *args):
    """Returns what a compiled function gives, and the report of its graph."""
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(f, backend=BACKEND, options={"debug": True})(*args)
    return result, reports[0]


def test_plugin_is_well_formed():
    assert check_plugin(litz_my_decomposition, name="my_decomposition").hooks == ("litz_register_decompositions",)


def test_it_counts_as_eager_does():
    x = torch.tensor([[-2.0, -1.0, 0.0], [0.5, float("nan"), float("inf")]])
    f = lambda x: [
        torch.bucketize(x, BOUNDARIES, right=right, out_int32=small)
        for right in (False, True)
        for small in (False, True)
    ]
    result, made = compiled(f, x)
    torch.testing.assert_close(result, f(x), rtol=0, atol=0)  # dtypes too
    assert not made.externs


def test_it_fuses():
    x = torch.randn(64, 8)
    f = lambda x: torch.bucketize(x * 2, BOUNDARIES) + 1
    result, made = compiled(f, x)
    assert torch.equal(result, f(x))
    assert made.kernels_after == 1


def test_many_boundaries_stay_with_the_library():
    x, boundaries = torch.randn(16), torch.linspace(-1, 1, 1000)
    result, made = compiled(torch.bucketize, x, boundaries)
    assert torch.equal(result, torch.bucketize(x, boundaries))
    assert dict(made.externs) == {"aten.bucketize.Tensor": 1}


def test_it_conforms():
    """Against eager, static and dynamic sizes, on these samples. With `builds` litz builds the kernels too."""
    pytest.importorskip("litz_testing")
    x = torch.randn(4, 6)
    calls = [((x, BOUNDARIES), {}), ((x.t(), BOUNDARIES), {"right": True}), ((x[:0], BOUNDARIES), {"out_int32": True})]
    samples = {torch.ops.aten.bucketize.Tensor: calls}
    check_conformance(litz_my_decomposition, name="my_decomposition", samples=samples, builds=False)
