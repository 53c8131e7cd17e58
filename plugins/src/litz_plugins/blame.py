"""The one wrapper around every call of a plugin's function, whoever makes it.

In: who is called, for what, and the nouns that it is handed. Out: what it returns; or, whatever went wrong (an
exception, `sys.exit`, a call without end, a noun changed in place, a result that a check refuses), one failure that
names the plugin. `Plugins` decides what becomes of a failure: an error, or a compile without that plugin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from litz_plugins.errors import PluginError, PluginHookError
from litz_plugins.loading import Source
from litz_plugins.unchanged import Snapshot
from litz_plugins.watchdog import SLOW, Running, TookTooLong, Watchdog

if TYPE_CHECKING:
    from litz_plugins.ledger import Ledger

_RESTARTS = frozenset({"RestartAnalysis", "TensorifyScalarRestartAnalysis"})
"""What dynamo raises to begin its analysis anew, by the names of the classes: no failure of whoever is called."""

WATCHDOG = Watchdog()
AT_ONCE = 0.01
"""The part of its limit that a plugin may lack because of those that were asked right before it."""


class LeftOut(BaseException):
    """A plugin failed, and is left out from now on: what was being made has to be begun anew, without it.

    No Exception: between a plugin and who begins anew there may be those who catch these (torch's tracing). ``error``
    says what went wrong.
    """

    def __init__(self, error: PluginError) -> None:
        self.error = error
        super().__init__(str(error))


class _ChangedInPlace(Exception):
    """A plugin has changed what it was handed."""


class Called(NamedTuple):
    """A call of a plugin's function that has ended, for who keeps account of calls.

    what: the hook ("litz_register_passes"), or what else of the plugin's was called ("pass 'fuse' (program stage)",
    "lowering of aten.relu.default"). begun: by `time.perf_counter`. seconds: wall time. result: what it returned, None
    for a block of several calls. failed: it ended in a failure.
    """

    plugin: str
    what: str
    begun: float
    seconds: float
    result: Any = None
    failed: bool = False


class Judge(Protocol):
    """The one who is told of plugins' failures and calls: `Plugins`."""

    seconds: float
    ledger: Ledger
    watchers: list[Callable[[Called], None]]

    def failed(self, plugin: str, what: str, cause: BaseException, node: str = "") -> None:
        """Raises an error that names the plugin, or returns where the plugin is left out instead."""

    def source_of(self, plugin: str) -> Source:
        """Returns where a plugin comes from."""

    def error_of(self, plugin: str) -> PluginError:
        """Returns why a plugin was left out."""

    def is_builtin(self, plugin: str) -> bool:
        """Returns whether a plugin is core's own."""

    def slow(self, plugin: str, what: str) -> None:
        """Notes that a call has been running for a second. Another thread calls this."""

    def slow_ended(self, plugin: str, what: str, seconds: float) -> None:
        """Notes that a slow call has ended, after `seconds`."""


class Call(Running):
    """The context of one call.

    As in::

        with Call(judge, "mine", "pass 'fuse' (program stage)", snapshots) as call:
            call.result = run(noun, context)

    A failure inside is the plugin's. goes_on: whether the code after it can do without the plugin; where not, `LeftOut`
    is raised if the plugin is left out. passes: exceptions that are no failures. seconds: its limit, 0 for none.
    checks: the block only checks what a call returned, and is no call of its own.
    """

    __slots__ = (
        "_checks",
        "_goes_on",
        "_judge",
        "_node",
        "_passes",
        "_since",
        "_snapshots",
        "_turns",
        "failed",
        "plugin",
        "result",
        "what",
    )

    def __init__(
        self,
        judge: Judge,
        plugin: str,
        what: str,
        snapshots: Sequence[Snapshot] = (),
        *,
        goes_on: bool = False,
        passes: tuple[type[BaseException], ...] = (),
        seconds: float | None = None,
        node: str = "",
        checks: bool = False,
    ) -> None:
        super().__init__(judge.seconds if seconds is None else seconds)
        self._judge, self.plugin, self.what, self._snapshots = judge, plugin, what, snapshots
        self._goes_on, self._passes, self._node, self._checks = goes_on, passes, node, checks
        self.result: Any = None
        self.failed = False
        self._turns: list[tuple[str, float, float]] = []

    def __enter__(self) -> Call:
        if self.seconds or not self._judge.is_builtin(self.plugin):
            WATCHDOG.begin(self)
        else:
            self.begun = time.perf_counter()
        self._since = self.begun
        return self

    def say(self) -> None:
        """Tells whoever shows progress whose call has been running for a second."""
        self._judge.slow(self.plugin, self.what)

    def turn(self, plugin: str, snapshots: Sequence[Snapshot]) -> None:
        """The plugin that was called has no opinion, and the next is asked: in the block of one `Call`, as to begin one
        for each would take longer than most plugins do."""
        for snapshot in self._snapshots:
            if snapshot.change():
                raise _ChangedInPlace  # `__exit__` finds out what, and puts it back
        now = time.perf_counter()
        self._turns.append((self.plugin, self._since, now - self._since))
        # The watchdog's times begin anew where the turns so far have taken any of them to speak of: most take 1 µs.
        if now - self.begun > AT_ONCE * min(self.seconds or SLOW, SLOW):
            if self.said:
                self._end_said()
            WATCHDOG.again(self, now)
        self._since, self.plugin, self._snapshots = now, plugin, snapshots

    def _end_said(self) -> None:
        self.said = False
        self._judge.slow_ended(self.plugin, self.what, time.perf_counter() - self._since)

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> bool:
        told, cause = WATCHDOG.end(self), error
        if self.said:
            self._end_said()
        if told:
            late = TimeoutError(f"it took more than {self.seconds:g} s (option plugin_seconds)")
            cause = late.with_traceback(trace)  # where the call was then
        for snapshot in self._snapshots:
            changed = snapshot.change()
            if changed:
                snapshot.restore()
                problem = f"it changed {changed} in place, which it was handed to read; return a new one instead"
                cause = TypeError(problem) if cause is None or isinstance(cause, _ChangedInPlace) else cause
        if cause is None or (not told and error is not None and not self._is_failure(error)):
            self._tell()
            return False
        self.failed = True
        self._tell()
        self._judge.failed(self.plugin, self.what, cause, self._node)
        if not self._goes_on:
            raise LeftOut(self._judge.error_of(self.plugin)) from cause
        return True

    def _is_failure(self, error: BaseException) -> bool:
        if isinstance(error, (*self._passes, PluginHookError)):  # the latter: another plugin's, which it has asked
            return False
        if _RESTARTS and any(cls.__name__ in _RESTARTS for cls in type(error).__mro__):
            return False
        return isinstance(error, (Exception, SystemExit))

    def _tell(self) -> None:
        if not self.failed and self._checks:
            return
        self._turns.append((self.plugin, self._since, time.perf_counter() - self._since))
        self._judge.ledger.in_turn(self.what, self._turns, self.failed)
        if self._judge.watchers:
            last = len(self._turns) - 1
            for n, (plugin, begun, seconds) in enumerate(self._turns):
                ended = (self.result, self.failed) if n == last else (None, False)
                for watcher in self._judge.watchers:
                    watcher(Called(plugin, self.what, begun, seconds, *ended))


@dataclass(frozen=True, eq=False)
class Blamed:
    """A plugin's function, called as the function itself; what goes wrong in a call names the plugin.

    what: "lowering of aten.relu.default". passes: exceptions that are no failures. check: called with the result;
    raises for what must not be returned, else gives what is. handed: called with the arguments, gives the snapshots of
    the nouns among them. Attributes are the function's.
    """

    judge: Judge
    plugin: str
    what: str
    function: Callable[..., Any]
    passes: tuple[type[BaseException], ...] = ()
    check: Callable[[Any], Any] | None = None
    handed: Callable[..., Sequence[Snapshot]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function and checks its result; whatever goes wrong names the plugin."""
        with self.call(() if self.handed is None else self.handed(*args, **kwargs)) as call:
            call.result = self.function(*args, **kwargs)
            if self.check is not None:
                call.result = self.check(call.result)
        return call.result

    def call(self, snapshots: Sequence[Snapshot] = (), node: str = "") -> Call:
        """Returns the context for a call of `function`, and for checks of what it returns. node: of the graph, which
        the call is for."""
        return Call(self.judge, self.plugin, self.what, snapshots, passes=self.passes, node=node)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


__all__ = ["Blamed", "Call", "Called", "Judge", "LeftOut", "TookTooLong"]
