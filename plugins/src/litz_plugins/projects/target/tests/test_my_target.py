import pytest
import torch

import litz_my_target
from litz import report
from litz.backend import backend_with
from litz.driver.builtin import builtin_plugins
from litz_plugins import make_plugins
from litz_plugins.testing import check_plugin


def test_plugin_is_well_formed():
    assert check_plugin(litz_my_target, name="my_target").devices == ("cpu",)


def test_packages_hold_its_kernels(tmp_path):
    litz_aot = pytest.importorskip("litz_aot")
    plugins = make_plugins(builtin_plugins(), extra=[("my_target", litz_my_target)], entry_points=())
    x = torch.randn(8, 100)
    folder = litz_aot.compile(lambda x: x.softmax(-1), (x,), tmp_path / "package", plugins=plugins)
    torch.testing.assert_close(litz_aot.load(folder)(x), x.softmax(-1))


def test_kernels_are_counted():
    backend = backend_with(my_target=litz_my_target)
    torch._dynamo.reset()
    litz_my_target.CODEGEN.rows.clear()
    x = torch.randn(8, 100)
    f = torch.compile(lambda x: x.softmax(-1), backend=backend, options={"graph_cache": False})
    with report.collect() as reports:
        for _ in range(3):
            torch.testing.assert_close(f(x), x.softmax(-1))
    (row,) = litz_my_target.CODEGEN.rows.values()
    assert row.launches == 3 and row.seconds > 0
    assert row.kernel in litz_my_target.CODEGEN.table()
    assert "8" in row.kernel and "100" in row.kernel  # it says over what the kernel walks
    assert reports[0].plan.targets[x.device].source.endswith("launches timed")
