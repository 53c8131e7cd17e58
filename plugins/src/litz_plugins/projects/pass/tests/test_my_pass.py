from functools import partial

import pytest
import torch

import litz_my_pass
from litz import report
from litz.backend import backend_with
from litz_plugins.testing import check_plugin, make_test_plugins

BACKEND = backend_with(my_pass=litz_my_pass)


def compiled(f, x, **options):
    """Returns what a compiled function gives, and the report of its graph."""
    torch._dynamo.reset()
    with report.collect() as reports:
        result = torch.compile(f, backend=BACKEND, options={"debug": True, **options})(x)
    return result, reports[0]


def scaled(x, by):
    return (x + 1) / by


def test_plugin_is_well_formed():
    found = check_plugin(litz_my_pass, name="my_pass")
    assert found.options == ("my_pass.inexact",)
    assert found.passes == ("my_pass_reciprocals",)


def test_a_power_of_two_is_multiplied_by():
    x = torch.randn(100)
    result, made = compiled(partial(scaled, by=8), x)
    assert torch.equal(result, scaled(x, 8))  # to the last bit
    assert " div " not in str(made.program) and "0.125:f32" in str(made.program)
    assert any(d.plugin == "my_pass" and d.chosen == "rewritten" for d in made.decisions)


@pytest.mark.parametrize("inexact", [False, True])
def test_other_divisors_are_for_the_option_to_decide(inexact):
    x = torch.randn(100)
    result, made = compiled(partial(scaled, by=3), x, **{"my_pass.inexact": inexact})
    torch.testing.assert_close(result, scaled(x, 3))
    assert (" div " in str(made.program)) is not inexact


def test_a_program_without_divisions_stays_the_same_object():
    harness = make_test_plugins(litz_my_pass, name="my_pass")
    _, made = compiled(torch.exp, torch.randn(8))
    assert harness.run_passes("program", made.program) is made.program
    assert harness.decisions == []
