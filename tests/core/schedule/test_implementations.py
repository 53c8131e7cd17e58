"""What runs each contraction, and why nothing else does: records, and what a compile says of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.core.schedule.test_choices import mm, pointwise, program_of
from tests.support import retarget

from litz import report as reports
from litz.pipeline import make_compiler
from litz.schedule.choices import Replacement
from litz.schedule.implementations import ContractionRecord, Hearing, make_records
from litz_plugins import Choice, Decision, Estimate

BF16 = torch.bfloat16


def test_the_one_that_runs_comes_first_with_what_it_does_besides() -> None:
    program = program_of(
        pointwise("make", "a2", "a", "a"), mm("m", "a2", "b", "c"), pointwise("use", "e", "c", "c"), outputs="e"
    )
    template = program.operations[1]
    library = Choice("aten.mm.default", "extern", template)
    both = Choice("both", "template", Replacement((), absorbs=("make", "use")), Estimate(2.0, 1.0, 3.0, "told"))
    other = Choice("other", "template", template)
    heard = Hearing("m")
    heard.verdict("both", "3 µs at worst")
    heard.verdict("rows", "512 rows")
    (record,) = make_records(template, program, (library, both, other), both, "me", heard, Estimate(9, 8, 10, ""))
    assert [(way.name, way.us, way.verdict) for way in record.implementations] == [
        ("both", 2.0, "3 µs at worst"),
        ("aten.mm.default", 9, "not chosen by me"),
        ("other", None, "not chosen by me"),
        ("rows", None, "512 rows"),
    ]
    assert (record.producers, record.users, record.plugin) == (("make",), ("use",), "me")
    assert record.what == "[4, 4] x [4, 4] f32"


def test_a_contraction_in_the_launch_of_another_has_a_record() -> None:
    program = program_of(mm("m1", "a", "b", "c"), mm("m2", "a", "b", "d"), outputs="d")
    first = program.operations[0]
    choice = Choice("two", "template", Replacement((), absorbs=("m2",)))
    own, mate = make_records(first, program, (Choice("l", "extern", first), choice), choice, "me", Hearing("m1"), None)
    assert own.beside == ("m2",) and own.users == ()
    assert mate.subject == "m2" and mate.chosen.verdict == "in the launch of m1" and mate.rejected == ()


def test_what_an_offer_puts_on_record_is_its_verdict() -> None:
    heard, noted = Hearing("m"), list[Decision]()
    note = heard.listen(noted.append)
    with heard.from_template("blocks") as offers:
        note(Decision("schedule", "m", "aten.mm.default", "too odd"))
        note(Decision("schedule", "another", "x", "y"))
    with heard.from_template("silent"):
        pass
    with heard.from_template("offers") as offers:
        note(Decision("schedule", "m", "it", "fine"))
        offers.append(Choice("it", "template"))
    assert heard.verdicts == {"blocks": "too odd"} and len(noted) == 3


def records_on_cuda(fn: Callable[..., Any], *args: torch.Tensor) -> list[ContractionRecord]:
    found: list[ContractionRecord] = []
    torch._dynamo.reset()
    retarget.cuda_schedules(
        lambda backend: torch.compile(fn, backend=backend, dynamic=False)(*args), make_compiler(), contractions=found
    )
    return found


def test_each_rejected_implementation_has_a_reason() -> None:
    linear = torch.nn.functional.linear
    fn = lambda x, w, b: torch.sin(linear(x, w, b))
    for rows in (1, 512):
        (record,) = records_on_cuda(fn, *(torch.empty(size, dtype=BF16) for size in ((rows, 768), (3072, 768), 3072)))
        assert len(record.implementations) > 1 and all(way.verdict for way in record.rejected), record
        assert ("sin" in record.users) == (rows == 1)
        assert record.what == f"[3072] x [{rows}, 768] x [768, 3072] bf16"


def test_products_that_share_a_launch_say_so() -> None:
    fn = lambda x, a, b: (x @ a, x @ b)
    first, second = records_on_cuda(fn, *(torch.empty(size, dtype=BF16) for size in ((1, 512), (512, 512), (512, 512))))
    assert first.beside == (second.subject,) and second.chosen.name == first.chosen.name


def test_a_report_has_the_contractions_of_its_graph() -> None:
    with reports.collect() as found:
        torch.compile(lambda a, b: a @ b + 1, backend="litz")(torch.randn(8, 8), torch.randn(8, 8))
    (record,) = found[0].contractions
    assert record.op == "aten.mm.default" and record.chosen.name == record.op
    assert [way.name for way in record.rejected] == ["rows on a processor"]
    assert found[0].to_json()["contractions"][0]["implementations"][0]["name"] == record.op
