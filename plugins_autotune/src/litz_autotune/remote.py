"""Records that several machines share, in Redis. In: a key and the problem. Out: the record, if the server has it.

A value is the same JSON as on disk, and is checked as such; nothing is unpickled. The first who stores a result wins
and everyone uses that, so that ranks decide alike. A server that does not answer costs one warning and 200 ms; then
this process goes on without it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from litz_plugins import Secret

from .problem import Problem
from .results import Counters, Record

PREFIX = "litz:autotune:1:"
SECONDS = 0.2
"""How long the server may take to answer."""

T = TypeVar("T")


class RemoteStore:
    """Records behind a URL that the redis package understands: redis://:password@host:port/number."""

    def __init__(self, url: str, counters: Counters) -> None:
        self.url, self.counters = Secret(url), counters
        self._client: Any = None
        self._broken = False

    def find(self, key: str, problem: Problem) -> Record | None:
        """Returns the record of a problem; None if the server has none, or none that is right."""
        found = self._in_time(lambda: self._connect().get(PREFIX + key))
        record = None if found is None else _checked(found, problem)
        if record is None:
            self.counters.remote_misses += 0 if self._broken else 1
        else:
            self.counters.remote_hits += 1
        return record

    def put(self, key: str, record: Record) -> Record:
        """Stores a record unless a right one is there. Returns the record that counts."""

        def store() -> Any:
            client = self._connect()
            # A damaged value must not bar the way for ever, hence the look at what is there.
            if client.set(PREFIX + key, record.to_json(), nx=True):
                return None
            there = client.get(PREFIX + key)
            if there is None or _checked(there, record.problem) is None:
                client.set(PREFIX + key, record.to_json())
                return None
            return there

        there = self._in_time(store)
        if self._broken:
            return record
        if there is None:
            self.counters.remote_puts += 1
            return record
        return _checked(there, record.problem) or record

    def _connect(self) -> Any:
        if self._client is None:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            known: dict[str, Any] = {"socket_timeout": SECONDS, "socket_connect_timeout": SECONDS}
            try:
                self._client = redis.Redis.from_url(self.url.reveal(), retry=Retry(NoBackoff(), 0), **known)
            except ValueError:  # whose text may be a part of the password
                raise ValueError("no URL that the redis package can read") from None
        return self._client

    def _in_time(self, action: Callable[[], T]) -> T | None:
        """Returns what `action` gives within the time; None, and no more of this server, if it fails or takes longer.

        In a thread: looking up a host's name cannot be given a time limit otherwise.
        """
        if self._broken:
            return None
        found: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                found.append(action())
            except BaseException as error:
                errors.append(error)

        if self._client is None:
            try:
                self._connect()  # the import of the package is not the server's time
            except Exception as error:
                errors.append(error)
        if not errors:
            thread = threading.Thread(target=run, daemon=True, name="litz-autotune-redis")
            thread.start()
            thread.join(SECONDS)
        if found:
            return found[0]
        self._broken = True
        self.counters.remote_failures += 1
        problem = f"{type(errors[0]).__name__}: {errors[0]}" if errors else f"no answer in {SECONDS:.1f} s"
        warnings.warn(f"litz-autotune goes on without autotune.remote_cache={self.url}: {problem}", stacklevel=2)
        return None


def _checked(data: Any, problem: Problem) -> Record | None:
    """The record in a value, if it is one and of this problem."""
    try:
        record = Record.from_json(data)
    except ValueError:
        return None
    return record if record.problem == problem else None
