"""Settings for every test: temporary files and caches of the run's own, so that nothing built before decides a result,
few threads for each worker, which do not spin while they wait, and a GPU only for tests that are marked as in need of
one."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import random
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from support import run_folder
from support.each_value import leave_cases_out
from support.eager_attention import untraced
from support.made_once import share_workers
from support.no_gpu import gpu_hidden
from support.processor_times import note, seconds_so_far
from support.ranks import WORLD, Ranks
from support.warm import GC_THRESHOLDS, MODULES, leave_unread_unmade
from support.warm_children import warm_python

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

    from litz_plugins import Choice, ChoiceContext

WHOLE_RUN = 2000
"""More tests than this, and some will compile."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="other random numbers for every test (default: 0)")
    parser.addoption("--processor-times", metavar="FILE", help="append each test's processor seconds to this file")
    parser.addoption("--gpus", type=int, help="this many GPUs are here: each process of -n sees one of them, in turn")


def pytest_configure(config: pytest.Config) -> None:
    """One folder for the run's temporary files, and one of each cache, shared by its workers; what the environment says
    wins. Workers are started after this and inherit them, before torch is loaded. Graphs are compiled, not cached. Two
    threads, so that kernels do run in parallel."""
    config.add_cleanup(functools.partial(run_folder.end, run_folder.begin()))
    # Where CI is set, torch has other defaults (`error_on_custom_op_aliasing`): tests are the same everywhere. pytest
    # prints all of a failure for this variable too.
    if os.environ.pop("CI", ""):
        os.environ.setdefault("BUILD_NUMBER", "1")
    if "LITZ_CACHE_DIR" not in os.environ:
        os.environ["LITZ_CACHE_DIR"] = tempfile.mkdtemp(prefix="litz-test-cache-")
    # torch's own, which is for all runs by default, finds graphs of an earlier run without a trace.
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="litz-test-torch-cache-")
    # Triton's, in which ptxas runs once for each distinct text of all workers, is for all runs by default, too.
    if "TRITON_CACHE_DIR" not in os.environ:
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="litz-test-triton-cache-")
    # Tests look at what a compile decides, and change by hand what no key knows of. Those of the cache turn it on.
    os.environ.setdefault("LITZ_GRAPH_CACHE", "0")
    # A process that compiles kernels takes half a second to start, and tests run beside each other already.
    os.environ.setdefault("LITZ_BUILD_PROCESSES", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # How long hypothesis takes to make an input says how busy the machine is, and nothing about the test.
    # Its numbers are the same in every run, as they are by hypothesis's own choice where CI is set.
    settings.register_profile(
        "busy machine",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not config.getoption("--seed"),
        database=None,
        print_blob=True,
    )
    settings.load_profile("busy machine")
    gpus, worker = config.getoption("--gpus"), os.environ.get("PYTEST_XDIST_WORKER", "")
    if gpus and worker:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker.removeprefix("gw")) % gpus)


@pytest.hookimpl(optionalhook=True)  # the GPU machine has no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getoption("dist") != "loadgroup":
        return None
    from support.scheduler import Scheduler

    return Scheduler(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from support.scheduler import say_less

        say_less(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The collector of garbage does not look at what is there before the first test, thousands of tests and all that
    they import: it stays, and a look takes half a second, each of many times. Of a run of all tests, nor at what torch
    imports when it first compiles something."""
    gc.disable()
    try:
        found = yield
        if len(getattr(session, "items", ())) > WHOLE_RUN:
            for module in MODULES:
                importlib.import_module(module)
        return found
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not ask for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_cases_out(items)
    share_workers(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test without the mark `gpu` or `gpu2`, with its fixtures, runs as on a machine without a GPU. After a
    test with such a mark its process keeps no unused memory of the GPU."""
    if item.get_closest_marker("gpu") or item.get_closest_marker("gpu2"):
        found = yield
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # other processes of the run share the GPU
        return found
    with gpu_hidden(), timed(item):
        return (yield)


@contextlib.contextmanager
def timed(item: pytest.Item) -> Iterator[None]:
    """A test with its fixtures writes what it takes of the processor, where `--processor-times` asks for that."""
    path = item.config.getoption("--processor-times")
    before = seconds_so_far() if path else 0.0
    yield
    if path:
        note(path, item.nodeid, seconds_so_far() - before)


def pytest_sessionfinish() -> None:
    """The process ends without looking five times, and once more as Python ends, at all that the tests have left."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)  # when pytest's own wrapper has begun to listen
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    leave_unseen_undone()
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    leave_unseen_undone()
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    leave_unseen_undone()
    return (yield)


def leave_unseen_undone() -> None:
    """A compile does not do what no test looks at, and what takes a fourth of the time of a small one.

    torch writes no traces for pytest, which throws each away when torch has made its text; a test that wants traces
    adds a handler. Dynamo does not time the guards for its metrics, before which it empties the processor's caches, nor
    make the like that nobody reads (`support.warm.UNREAD`)."""
    traces = logging.getLogger("torch.__trace")
    # All of pytest's handlers: one of them is enough for torch to write, whatever the handler's level.
    traces.handlers[:] = [handler for handler in traces.handlers if type(handler).__module__ != "_pytest.logging"]
    leave_unread_unmade()  # where dynamo is not loaded yet, in the next test


@pytest.fixture(autouse=True)
def numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """A test draws the same random numbers in every run, whatever ran before it in its process."""
    seed = zlib.crc32(f"{request.node.nodeid} {request.config.getoption('--seed')}".encode())
    random.seed(seed)
    torch = sys.modules.get("torch")  # not loaded: its numbers start from a seed of torch's, always the same
    if torch is not None:
        # torch.manual_seed formats the stack, for a GPU that is not yet in use.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    """No test meets what another compiled, nor a size that dynamo takes as a symbol since another test varied it."""
    dynamo = sys.modules.get("torch._dynamo")  # not loaded: nothing compiled
    if dynamo is not None:
        dynamo.reset()


@pytest.fixture(autouse=True)
def nobody_left_out() -> Iterator[None]:
    """A plugin that fails in one test is there again in the next."""
    yield
    quarantine = sys.modules.get("litz_plugins.quarantine")  # not loaded: nothing failed
    if quarantine is not None:
        quarantine.forget()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes with a gloo group, for every test that communicates: starting them takes seconds. Such tests have
    the mark `xdist_group("ranks")`, so that one worker has them all."""
    with Ranks(WORLD) as found:
        yield found


@pytest.fixture
def warm_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters that the test's code starts by `sys.executable` have imported torch (`support.warm_children`)."""
    import torch

    if not torch.cuda.is_available():  # a copy finds the GPUs that its original found
        monkeypatch.setattr(sys, "executable", warm_python())


@pytest.fixture
def interpreters_with_litz(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `warm_interpreters`; they have imported what a first compile imports, too."""
    import torch

    if not torch.cuda.is_available():
        monkeypatch.setattr(sys, "executable", warm_python(imported=True))


@pytest.fixture
def attention_untraced() -> Iterator[None]:
    """`support.eager_attention.untraced` for a whole test."""
    with untraced():
        yield


@pytest.fixture
def kernels_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is measured, the first template that is offered for a contraction is taken, whatever its estimate
    says: for tests of a kernel at sizes at which the library's may be quicker. What no template is offered for stays
    the library call."""

    def first(choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        return next((choice for choice in choices if choice.kind == "template"), None)

    monkeypatch.setattr("litz.schedule.choices.by_estimate", first)
