"""A measuring process: takes requests off a line, runs them, and sends back what they return.

`litz_autotune.pool` starts the process, which ends when the line closes.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def main(line: int) -> None:
    """Serves the requests that come over the socket `line` until it closes, or until a fatal error."""
    connection = Connection(line)
    import torch

    from . import race  # noqa: F401  (so that no request's time has to include the imports)

    if torch.cuda.is_available():
        torch.cuda.init()
    connection.send("ready")
    state: dict[str, Any] = {}
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return
        kind, value = _serve(data, state)
        connection.send((kind, value))
        if kind == "fatal":
            return


def _serve(data: bytes, state: dict[str, Any]) -> tuple[str, Any]:
    from .library_settings import restore
    from .race import is_fatal

    try:
        settings, request = pickle.loads(data)
        restore(settings)
        return "result", request.run(state)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return ("fatal" if is_fatal(error) else "error"), text[:2000]
