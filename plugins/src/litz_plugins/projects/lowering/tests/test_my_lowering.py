import pytest
import torch

import litz_my_lowering
from litz import report
from litz.backend import backend_with
from litz_my_lowering.ops import rms_norm, squareplus
from litz_plugins.testing import check_conformance, check_plugin

BACKEND = backend_with(my_lowering=litz_my_lowering)


def compiled(f, *args, dynamic=None):
    """Returns what a compiled function gives, and the report of its first graph."""
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(f, backend=BACKEND, options={"debug": True}, dynamic=dynamic)(*args)
    return result, reports[0]


def test_plugin_is_well_formed():
    assert check_plugin(litz_my_lowering, name="my_lowering").hooks == ("litz_register_lowerings",)


def test_the_operators_are_well_formed():
    quick = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(squareplus, (torch.randn(3, 4, requires_grad=True), 2.0), test_utils=quick)
    torch.library.opcheck(rms_norm, (torch.randn(3, 4), torch.randn(4)), test_utils=quick)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_are_kernels_and_fuse(dtype):
    x, weight = torch.randn(4, 96, dtype=dtype), torch.randn(96, dtype=dtype)
    f = lambda x, weight: squareplus(rms_norm(x, weight), 2.0) + 1
    result, made = compiled(f, x, weight)
    torch.testing.assert_close(result, f(x, weight))
    assert not made.externs  # no library call is left
    assert made.kernels_after == 1


def test_sizes_may_be_dynamic_and_strides_odd():
    x, weight = torch.randn(6, 10).t(), torch.randn(6)
    f = lambda x, weight: (rms_norm(x, weight), squareplus(x))
    result, made = compiled(f, x, weight, dynamic=True)
    torch.testing.assert_close(result, f(x, weight))
    assert [r.stride() for r in result] == [r.stride() for r in f(x, weight)]
    assert not made.externs


def test_gradients():
    x = torch.randn(5, 7, requires_grad=True)
    result, _ = compiled(lambda x: squareplus(x).sum(), x)
    (ours,) = torch.autograd.grad(result, x)
    (theirs,) = torch.autograd.grad(squareplus(x).sum(), x)
    torch.testing.assert_close(ours, theirs)


def test_it_conforms():
    """Against eager, judged by float64, with static and dynamic sizes, on these samples. Without `variants` and
    `builds`, samples of many shapes, strides and dtypes are made too, and kernels built: a minute."""
    pytest.importorskip("litz_testing")
    x, weight = torch.randn(4, 6), torch.randn(6)
    samples = {
        torch.ops.my_lowering.rms_norm.default: [((x, weight), {}), ((x[:1, ::2], weight[::2], 0.1), {})],
        torch.ops.my_lowering.squareplus.default: [((x.half(),), {}), ((x[:0], 1.0), {})],
    }
    check_conformance(litz_my_lowering, name="my_lowering", samples=samples, variants=(), builds=False)
