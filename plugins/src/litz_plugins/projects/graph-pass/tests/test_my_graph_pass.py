import pytest
import torch

import litz_my_graph_pass
from litz import report
from litz.backend import backend_with
from litz_plugins.testing import check_plugin

BACKEND = backend_with(my_graph_pass=litz_my_graph_pass)


def chain(a, b, c):
    return (a @ b) @ c


def compiled(f, *args, **options):
    """Returns what a compiled function gives, and the report of its first graph."""
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(f, backend=BACKEND, options={"debug": True, **options})(*args)
    return result, reports[0]


def orders(made):
    """Returns the sizes of the products that a program makes, in order."""
    return [tuple(map(int, made.program.buffers[call.outputs[0]].layout.size)) for call in made.program.externs]


def matrices(n, k, m, p):
    return torch.randn(n, k), torch.randn(k, m), torch.randn(m, p)


def test_plugin_is_well_formed():
    assert check_plugin(litz_my_graph_pass, name="my_graph_pass").passes == ("my_graph_pass_order",)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((64, 32, 64, 1), [(32, 1), (64, 1)]),  # by a vector: from the right
        ((1, 32, 64, 64), [(1, 64), (1, 64)]),  # a vector by matrices: as it was
        ((16, 16, 16, 16), [(16, 16), (16, 16)]),  # no gain
    ],
)
def test_the_cheaper_order_is_taken(sizes, expected):
    given = matrices(*sizes)
    result, made = compiled(chain, *given)
    torch.testing.assert_close(result, chain(*given), rtol=1e-4, atol=1e-3)
    assert orders(made) == expected


def test_a_product_that_others_use_stays():
    given = matrices(64, 32, 64, 1)

    def f(a, b, c):
        product = a @ b
        return product, product @ c

    result, made = compiled(f, *given)
    torch.testing.assert_close(result, f(*given), rtol=1e-4, atol=1e-3)
    assert orders(made) == [(64, 64), (64, 1)]


def test_a_product_by_itself_stays():
    given = torch.randn(64, 1), torch.randn(1, 64)

    def f(a, b):
        product = a @ b
        return product @ product

    result, made = compiled(f, *given)
    torch.testing.assert_close(result, f(*given), rtol=1e-4, atol=1e-3)
    assert orders(made) == [(64, 64), (64, 64)]


def test_it_can_be_vetoed_and_says_why():
    given = matrices(64, 32, 64, 1)
    _, made = compiled(chain, *given)
    (decision,) = [d for d in made.decisions if d.plugin == "my_graph_pass"]
    assert decision.reason == "4096 multiplications in place of 135168"
    _, vetoed = compiled(chain, *given, veto=(decision.key,))
    assert orders(vetoed) == [(64, 64), (64, 1)]
