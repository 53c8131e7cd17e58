import logging

import torch

from litz.backend import backend_with
from litz_my_observer import Observer
from litz_plugins.testing import check_plugin


def test_plugin_is_well_formed():
    hooks = ("litz_compile_finished", "litz_compile_started", "litz_pass_finished")
    assert check_plugin(Observer(), name="my_observer").hooks == hooks


def test_a_line_for_each_graph(caplog):
    backend = backend_with(my_observer=Observer())
    torch._dynamo.reset()
    x, weight = torch.randn(8, 8), torch.randn(8, 8)
    f = lambda x, weight: (x.exp() @ weight).relu()
    with caplog.at_level(logging.DEBUG, "litz_my_observer"):
        result = torch.compile(f, backend=backend, options={"graph_cache": False})(x, weight)
    torch.testing.assert_close(result, f(x, weight))
    started, finished = [record.getMessage() for record in caplog.records if record.name == "litz_my_observer"]
    assert started.endswith("_inference: 6 nodes")
    assert "_inference: 2 kernels and 1 calls in " in finished and " s in passes (" in finished
