"""docs/autotune.md keeps up with the code: its options are those that there are, its template works."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from litz_autotune import Autotune
from litz_plugins.manager import make_plugins
from support.fake_timer import FakeTimer
from support.tuned import Tuned

PAGE = (Path(__file__).parents[2] / "docs" / "autotune.md").read_text()


def test_every_option_is_documented_and_no_other() -> None:
    named = set(re.findall(r"^\| `autotune\.(\w+)` \|", PAGE, re.MULTILINE))
    assert named == {spec.name for spec in Autotune().litz_register_options()}


def test_the_template_of_the_page_is_measured_and_can_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"<!-- test: template -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    module = type(sys)("litz_halves")
    exec(compile(source, "docs/autotune.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "litz_halves", module)
    compile_ = Tuned(tmp_path, FakeTimer((("library", 100), ("in two halves", 50))))
    from litz.driver.builtin import builtin_plugins

    extra = [("autotune", compile_.autotune), ("halves", module)]
    compile_.plugins = make_plugins(builtin_plugins(), extra=extra, entry_points=())
    a, b = torch.randn(8, 2048), torch.randn(2048, 8)
    torch.testing.assert_close(compile_(torch.mm, a, b), a @ b, atol=1e-3, rtol=1e-3)
    assert compile_.chosen == ["in two halves"]
    compile_(torch.mm, a[:, :64].contiguous(), b[:64])
    assert compile_.chosen == []
