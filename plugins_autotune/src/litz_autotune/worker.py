"""A measuring process: takes requests off a line, runs them, and sends back what they return.

It is started by `litz_autotune.pool`, and ends when the line closes. This file imports nothing heavy: which devices the
process sees has to be settled before torch is imported.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(inherited: str | None, device: int | None) -> str | None:
    """What CUDA_VISIBLE_DEVICES is to be, None to leave it: the device-th of those that the parent sees."""
    if device is None:
        return None
    if inherited is None:
        return str(device)
    return inherited.split(",")[device]


def main(line: int, device: int | None) -> None:
    """Serve the requests that come over the socket `line` until it closes."""
    # The one place of this plugin that looks at the environment: it is that of a process of its own, at its start.
    wanted = visible_devices(os.environ.get(VISIBLE), device)
    if wanted is not None:
        os.environ[VISIBLE] = wanted
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
    from .race import is_fatal

    try:
        return "result", pickle.loads(data).run(state)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return ("fatal" if is_fatal(error) else "error"), text[:2000]
