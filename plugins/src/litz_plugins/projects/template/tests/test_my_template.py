import pytest
import torch

import litz_my_template
from litz import report
from litz.backend import backend_with
from litz_plugins.testing import check_plugin

BACKEND = backend_with(my_template=litz_my_template)


def compiled(f, *args, dynamic=None):
    """Returns what a compiled function gives, and the report of its graph."""
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(f, backend=BACKEND, options={"debug": True}, dynamic=dynamic)(*args)
    return result, reports[0]


def chosen(made):
    return [d.chosen for d in made.decisions if d.plugin == "my_template" and d.considered]


def test_plugin_is_well_formed():
    found = check_plugin(litz_my_template, name="my_template")
    assert found.templates == ("my_template_outer", "my_template_halves")


@pytest.mark.parametrize(("n", "dynamic"), [(6, False), (6, True), (1, False)])
def test_an_outer_product_fuses(n, dynamic):
    a, b = torch.randn(n, 1), torch.randn(7, 1)
    f = lambda a, b: (a @ b.t()).relu() + 1
    result, made = compiled(f, a, b, dynamic=dynamic)
    torch.testing.assert_close(result, f(a, b))
    assert chosen(made) == ["outer product as a loop"]
    assert made.kernels_after == 1 and not made.externs


@pytest.mark.parametrize("supported", [False, True])
def test_float16_where_the_processor_has_none(supported, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: supported)
    a, b = torch.randn(5, 30).half(), torch.randn(30, 4).half()
    result, made = compiled(torch.mm, a, b)
    torch.testing.assert_close(result, (a.double() @ b.double()).half())
    assert chosen(made) == ([] if supported else ["float16 by float32"])


def test_other_products_stay_with_the_library():
    a, b = torch.randn(4, 8), torch.randn(8, 4)
    result, made = compiled(torch.mm, a, b)
    torch.testing.assert_close(result, a @ b)
    assert chosen(made) == [] and dict(made.externs) == {"aten.mm.default": 1}
