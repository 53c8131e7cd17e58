"""litz: a torch.compile backend with a small core and pip-installed plugins.

    torch.compile(model, backend="litz")

`litz.backend` is what torch.compile finds; `litz.pipeline` has the whole compiler on one page; `litz.options` lists
what can be set. Importing this package imports nothing heavy. What compiles ahead of time is `litz_aot`, whose
`standalone_compile`, `deserialize` and `load` are attributes of this package, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from litz import logs

__version__ = "0.1.0"
logs.register()


def __getattr__(name: str) -> Any:
    if name not in ("standalone_compile", "deserialize", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("litz_aot"), name)
    except ModuleNotFoundError as error:
        raise AttributeError(
            f"litz.{name} is in the dist litz-aot, which is not installed: pip install litz-aot"
        ) from error


def register() -> None:
    """Makes the backend "litz" and litz's cache artifacts known to torch. An installed litz needs no such call: torch
    finds the names in the metadata of the dist. A litz without metadata (a folder or a zip on the path) needs one.

        import litz
        litz.register()
        torch.compile(model, backend="litz")

    A second call does nothing. Errors: ImportError without torch.
    """
    from litz.cache import artifacts
    from litz.capture.torch_api.registry import register_backend

    register_backend("litz", "litz.backend:litz")
    artifacts.register()


def load_cache_artifacts(artifacts: bytes) -> Any:
    """`torch.compiler.load_cache_artifacts`, also where torch has not found litz by itself (a litz without metadata,
    TORCH_DEVICE_BACKEND_AUTOLOAD=0): what `torch.compiler.save_cache_artifacts` gave elsewhere goes into the caches
    here, litz's disk cache among them.

    Returns what torch's function does. Load only what you would run: it holds code.
    """
    import torch

    from litz.cache.artifacts import register

    register()
    return torch.compiler.load_cache_artifacts(artifacts)
