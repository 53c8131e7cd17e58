"""AOTAutograd's settings, other ones for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def functorch_settings(**wanted: Any) -> Iterator[None]:
    """Changes settings of AOTAutograd for as long as the context is entered; those that this torch does not have are
    left out."""
    import torch._functorch.config as config

    # Not `config.patch`: each call makes a variable that the thread's context keeps for ever (torch 2.13).
    known = {name: value for name, value in wanted.items() if hasattr(config, name)}
    before = {name: getattr(config, name) for name in known}
    try:
        for name, value in known.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
