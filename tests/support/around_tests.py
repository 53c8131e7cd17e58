"""What pytest does around each of thousands of tests, in a fifth of the time.

pytest looks through all loggers six times a test, and starts and ends a thread that watches for tests that hang."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest import logging as pytest_logging
from _pytest.faulthandler import fault_handler_stderr_fd_key

HANG_SECONDS = 600
"""After so long a test that hangs says where, and ends its process: a failure that names the test."""
WATCH_SECONDS = 60
"""So long one watch serves all tests that begin: a test may hang for that much less."""
UNHEARD = frozenset(("torch.__trace",))
"""Loggers that pytest does not listen to. torch writes traces where anybody listens, whatever the level: a fourth of
the time of a small compile. A test that wants them adds a handler."""


def listen_in_less_time(config: pytest.Config) -> None:
    """Has pytest's plugin for `caplog`, and for what a failed test has logged, listen by `_listening`."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None and plugin.log_level is None:  # with a level, loggers' own are changed and set back
        plugin._runtest_for = lambda item, when: _listening(plugin, item, when)


@contextlib.contextmanager
def _listening(plugin: Any, item: pytest.Item, when: str) -> Iterator[None]:
    """One phase of a test, with both of pytest's handlers at the root and at each logger whose records do not reach it:
    those are found once for both, and no lock is taken for each."""
    handlers = [plugin.caplog_handler, plugin.report_handler]
    for handler in handlers:
        handler.reset()
    item.stash[pytest_logging.caplog_records_key][when] = plugin.caplog_handler.records
    item.stash[pytest_logging.caplog_handler_key] = plugin.caplog_handler
    root = logging.getLogger()
    known: list[Any] = [*root.manager.loggerDict.values()]  # other threads may make loggers meanwhile
    apart = [each for each in known if not getattr(each, "propagate", True) and each.name not in UNHEARD]
    heard = [root, *apart]
    for logger in heard:
        logger.handlers += handlers
    try:
        yield
    finally:
        for logger in heard:
            logger.handlers[:] = [handler for handler in logger.handlers if handler not in handlers]
        item.add_report_section(when, "log", plugin.report_handler.stream.getvalue().strip())


class Watch:
    """Looks out for tests that hang, by one thread for all tests of a minute."""

    def __init__(self) -> None:
        self._since = -float("inf")

    def begin(self, item: pytest.Item) -> None:
        """A test begins."""
        now = time.monotonic()
        if now - self._since > WATCH_SECONDS:
            stderr = item.config.stash[fault_handler_stderr_fd_key]
            faulthandler.dump_traceback_later(HANG_SECONDS, file=stderr, exit=True)
            self._since = now

    @staticmethod
    def end() -> None:
        """The last test has ended."""
        faulthandler.cancel_dump_traceback_later()


__all__ = ["Watch", "listen_in_less_time"]
