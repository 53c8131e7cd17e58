"""Functions as values of collectives.passes and collectives.cost: what runs, what the key has, what is refused."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # defines the ops
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.errors import InvalidOptionError
from litz.ir import Collective, Wait
from litz.options import Options, make_options
from litz.pipeline import schedule_only
from litz.schedule.schedule import Schedule
from litz_collectives.functions import OptionFunctionError, function_of, identity_of
from litz_collectives.plugin import litz_cache_fingerprint, litz_register_options
from litz_plugins import Function, LitzError, PassContext, Uncacheable
from litz_plugins.manager import make_plugins

ops = torch.ops._c10d_functional


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group(backend="fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def waits_last(schedule: Schedule, context: PassContext) -> Schedule:
    """A pass as a user writes it: the wait, and all that needs it, at the end."""
    late = {name for step in schedule.steps if isinstance(step, Wait) for name in step.writes}
    moved = []
    for step in schedule.steps:
        if isinstance(step, Wait) or late & set(step.reads):
            late |= set(step.writes)
            moved.append(step)
    steps = [step for step in schedule.steps if step not in moved]
    context.record("order of steps", "waits last", "a test")
    return replace(schedule, steps=(*steps, *moved))


def loses_a_step(schedule: Schedule, context: PassContext) -> Schedule:
    return replace(schedule, steps=schedule.steps[:-1])


def collectives_take_long(operation: Any, device: Any, program: Any) -> float | None:
    return 1e4 if isinstance(operation, Collective) else None


def between(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    got = ops.wait_tensor(ops.all_reduce(x, "sum", "0"))
    return got.sin(), y @ y


def kinds(passes: Any) -> str:
    """The steps of `between` under these passes: Collective, Wait, other."""
    given = {"collectives.passes": passes}
    (schedule,) = schedule_only(between, (torch.ones(8, 8), torch.ones(64, 64)), given)
    return "".join("C" if isinstance(s, Collective) else "W" if isinstance(s, Wait) else "o" for s in schedule.steps)


def test_a_function_and_its_path_run_as_a_pass(group: None) -> None:
    assert kinds([]).startswith("CW")
    path = f"{__name__}:waits_last"
    late = kinds(waits_last)
    assert late.index("W") == 2, "the product stands in between"
    assert kinds([waits_last]) == kinds(path) == kinds([waits_last, path, "sink_waits"]) == late


def test_functions_run_in_the_order_of_the_list(group: None) -> None:
    ran: list[str] = []

    def noting(name: str) -> Callable[[Schedule, PassContext], Schedule]:
        def run(schedule: Schedule, context: PassContext) -> Schedule:
            ran.append(name)
            return schedule

        return run

    kinds([noting("first"), "raise_comms", noting("second"), noting("third")])
    assert ran == ["first", "second", "third"]


def test_what_a_function_breaks_is_an_error_with_its_name(group: None) -> None:
    for passes, said in (
        ([loses_a_step], r"pass 'tests\.collectives\.test_functions:loses_a_step'[\s\S]* is lost"),
        ("no_such_module:run", r"collectives\.passes has 'no_such_module:run', which cannot be imported"),
    ):
        torch._dynamo.reset()
        with pytest.raises((LitzError, BackendCompilerFailed), match=said.replace("tests\\.collectives\\.", r"[\w.]*")):
            kinds(passes)


def test_a_cost_function_itself(group: None) -> None:
    given = {"collectives.cost": collectives_take_long, "collectives.passes": ["reorder_compute_for_overlap"]}
    (schedule,) = schedule_only(between, (torch.ones(8, 8), torch.ones(64, 64)), given)
    assert {type(step) for step in schedule.steps} >= {Collective, Wait}
    from litz_collectives.plugin import user_estimate

    (collective,) = (step for step in schedule.steps if isinstance(step, Collective))
    found = user_estimate(Function(collectives_take_long), collective, None, schedule.program)  # type: ignore[arg-type]
    assert found is not None and found.us == 1e4 and "collectives_take_long" in found.why


# ------------------------------------------------------------------------------------------------------------- options


def options(**given: Any) -> Options:
    return make_options(None, {f"collectives.{name}": value for name, value in given.items()}, specs(), {})


@functools.cache
def specs() -> tuple[Any, ...]:
    return make_plugins().option_specs()


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (["sink_wait"], "did you mean 'sink_waits'"),
        (["nothing of the kind"], "there is no pass"),
        (["os.path:"], "names no function"),
        (["a b:run"], "names no function"),
        ([3], "each a function"),
    ],
)
def test_what_names_no_pass(passes: Any, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said) as caught:
        options(passes=passes)
    assert "overlap" in str(caught.value) and "package.module:function" in str(caught.value)


def test_a_function_is_the_text_of_its_path() -> None:
    found = options(passes=[waits_last, "overlap"])["collectives.passes"]
    assert list(map(str, found)) == [f"{__name__}:waits_last", "overlap"] and found[0].given is waits_last
    assert options(passes=waits_last)["collectives.passes"] == (found[0],)
    assert Function(waits_last) == found[0] != Function(loses_a_step)
    assert found[0] != str(found[0]), "the text could lead to another function"
    assert Function(lambda: 1) != Function(lambda: 1), "of one name"
    assert copy.deepcopy(found[0]) is found[0]
    assert pickle.loads(pickle.dumps(options(passes=lambda s, c: s)))["collectives.passes"] == (
        f"{__name__}:test_a_function_is_the_text_of_its_path.<locals>.<lambda>",
    )
    assert str(Function(functools.partial(waits_last))) == "functools:partial"


def test_only_texts_and_lists_of_texts_may_be_functions() -> None:
    for spec in litz_register_options():
        assert not spec.functions or spec.type in (str, tuple)
    with pytest.raises(InvalidOptionError):
        options(memory_limit=waits_last)


# ------------------------------------------------------------------------------------------------------------- the key


class Named:
    """A pass with an identity of its own, as TorchInductor's custom passes have."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __call__(self, schedule: Schedule, context: PassContext) -> Schedule:
        return schedule

    def uuid(self) -> Any:
        return self.name


def closing_over(value: Any) -> Callable[[Schedule, PassContext], Schedule]:
    def run(schedule: Schedule, context: PassContext) -> Schedule:
        context.record("made with", str(value), "a test")
        return schedule

    return run


def key(function: Any) -> str | Uncacheable:
    return identity_of("collectives.passes", Function(function) if callable(function) else function)


def test_what_makes_another_key() -> None:
    functions = [waits_last, loses_a_step, closing_over(1), closing_over((1, "a")), Named("a"), Named(b"b")]
    functions += [lambda schedule, context: schedule, lambda schedule, context: schedule, f"{__name__}:waits_last"]
    keys = [key(function) for function in functions]
    assert all(isinstance(one, str) for one in keys) and len(set(keys)) == len(keys)
    assert [key(function) for function in functions] == keys
    assert key(closing_over(1)) == keys[2], "one of the same source, made with the same"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (closing_over([1]), "holds 'value', a list"),
        (Named(None), "is None"),
        (functools.partial(waits_last), "no plain function|nobody knows the source"),
        (Named("a").uuid, "no plain function"),
    ],
)
def test_what_has_no_key(function: Any, why: str) -> None:
    found = key(function)
    assert isinstance(found, Uncacheable)
    assert re.search(why, found.reason) and "collectives.passes" in found.reason


def test_the_source_of_a_path_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a_users_passes.py"
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for text in ("def run(s, c): return s\n", "def run(s, c): return c and s\n"):
        file.write_text(text)
        sys.modules.pop("a_users_passes", None)
        fingerprint = litz_cache_fingerprint(options(passes="a_users_passes:run"))
        found.append(fingerprint)
    assert all(isinstance(one, str) for one in found) and found[0] != found[1]
    sys.modules.pop("a_users_passes")
    assert isinstance(litz_cache_fingerprint(options(passes=["overlap", closing_over({})])), Uncacheable)


@pytest.mark.parametrize("text", ["no_such_module:f", "math:no_such", "math", "math:pi"])
def test_a_path_that_leads_nowhere(text: str) -> None:
    with pytest.raises(OptionFunctionError, match=r"the option collectives\.cost"):
        function_of("collectives.cost", text)
