"""litz: a torch.compile backend with a small core and pip-installed plugins.

    torch.compile(model, backend="litz")

`litz.backend` is what torch.compile finds; `litz.pipeline` has the whole compiler on one page; `litz.options` lists
what can be set. Importing this package imports nothing heavy. `aot_compile` and `aot_load` compile ahead of time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litz import logs

__version__ = "0.1.0"
logs.register()


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


def aot_compile(
    fn: Any,
    args: Sequence[Any] | None,
    path: str | os.PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> str:
    """Compiles `fn(*args, **kwargs)` for inference and writes it, with its weights, into the folder `path`.

    Another process loads it with `aot_load` and runs it; it tunes and compiles nothing. Fused and tuned as by
    `torch.compile(fn, backend="litz")`, whose `mode=` and `options=` these are; CUDA graphs are not recorded.

    fn: a module, or a function of tensors, that torch.export takes; or the ExportedProgram that torch.export has made,
    which has its dynamic shapes, and for which args may be None. dynamic_shapes: as torch.export's, for sizes that may
    vary; all others are fixed. path: a folder that is not there yet. Returns the path. Errors: PackageError, what
    torch.export raises, and what compiling raises.
    """
    from litz.aot import aot_compile

    return str(aot_compile(fn, args, path, kwargs, mode=mode, options=options, dynamic_shapes=dynamic_shapes))


def aot_load(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """Returns what `aot_compile` wrote, as a callable with the signature of the function that it was made of.

    It runs without gradients. Errors: PackageError if the package is damaged, was made with another torch or for
    another device, or lies where others may write (`LITZ_TRUST` names whom you trust); on a call PackageInputError for
    inputs that it was not made for. A package is code: load only what you would run.
    """
    from pathlib import Path

    from litz.options import make_options
    from litz.origins.trust import make_trust
    from litz.runtime.package import load_package

    return load_package(Path(path), make_trust(make_options().trust))


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
