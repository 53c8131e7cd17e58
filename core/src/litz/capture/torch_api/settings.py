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
    before = {name: getattr(config, name) for name in wanted if hasattr(config, name)}
    try:
        for name in before:
            setattr(config, name, wanted[name])
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
