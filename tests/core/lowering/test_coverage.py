"""Every op of torch's core set is compiled, or is library work with a reason."""

from __future__ import annotations

from litz_testing.coverage import CONTRACTIONS, LIBRARY, NO_KERNEL, core_ops, coverage, table


def test_no_core_op_is_missing() -> None:
    found = coverage()
    assert len(found) == len(core_ops()) > 150
    assert not [name for name, how in found.items() if how == "missing"]
    assert sum(how in ("native", "decomposed") for how in found.values()) > 160


def test_the_reasons_name_core_ops_only() -> None:
    names = {str(op) for op in core_ops()}
    given = [f"aten.{name}" for kind in (LIBRARY, NO_KERNEL) for listed in kind.values() for name in listed]
    assert set(given) <= names
    assert {f"aten.{name}.default" for name in CONTRACTIONS} <= names
    assert "missing" not in table()
