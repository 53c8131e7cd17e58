import json
from types import SimpleNamespace

import pytest
import torch

import litz_my_cost_model
from litz import report
from litz.backend import backend_with
from litz_my_cost_model.measure import measure
from litz_plugins.testing import check_plugin, make_test_plugins

SORT = "aten.sort.default"


@pytest.fixture
def table(tmp_path):
    """A table in which a sort takes 10 µs, and 1 µs for each element."""
    path = tmp_path / "table.json"
    path.write_text(
        json.dumps({"machine": "made up", "calls": {SORT: {"fixed_us": 10, "ns_per_element": 1000}}}), encoding="utf-8"
    )
    return path


def test_plugin_is_well_formed():
    assert check_plugin(litz_my_cost_model, name="my_cost_model").options == ("my_cost_model.table",)


def test_a_call_in_the_table(table):
    harness = make_test_plugins(litz_my_cost_model, name="my_cost_model", my_cost_model__table=table)
    layout = SimpleNamespace(numel=90)
    sort = SimpleNamespace(target_name=SORT, refs=[SimpleNamespace(layout=layout)])
    program = SimpleNamespace(hint=int)
    found = harness.plugins.estimate_runtime(sort, SimpleNamespace(type="cpu"), program, harness.options)
    assert (found.low_us, found.us, found.high_us) == (50, 100, 200)
    assert harness.estimate(sort, "cuda", program) is None


def test_a_compile_asks_it(table):
    backend = backend_with(my_cost_model=litz_my_cost_model)
    torch._dynamo.reset()
    f = lambda x: torch.sort(x.exp()).values + 1
    x = torch.randn(90)
    with report.collect() as reports:
        options = {"my_cost_model.table": table, "debug": True}
        torch.testing.assert_close(torch.compile(f, backend=backend, options=options)(x), f(x))
    (sort,) = [step for step in reports[0].steps if step.what == SORT]
    assert sort.estimate.us == 100 and "measured" in sort.estimate.why


def test_another_table_is_another_key(table):
    plugins = make_test_plugins(litz_my_cost_model, name="my_cost_model", my_cost_model__table=table)
    said = plugins.plugins.cache_fingerprints(plugins.options)
    assert said == {"my_cost_model": table.read_text(encoding="utf-8")}


def test_the_plugins_own_table_has_every_call():
    found = litz_my_cost_model.read_table(litz_my_cost_model.OWN_TABLE)
    assert found["calls"].keys() == measure(runs=1)["calls"].keys()
