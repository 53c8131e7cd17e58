"""litz-aot: packages, which are models compiled ahead of time for a process that compiles nothing.

    litz_aot.compile(model.eval(), (x,), "model.package")  # here: traced by torch.export, tuned, compiled, written
    run = litz_aot.load("model.package")  # in another process: nothing is tuned or compiled

`compiling` makes a package of what the compiler's stages made, `package` writes, loads and calls one. `cpp_kernels` and
`triton_kernels` put the kernels of core's targets into packages, behind the hook that other targets have, which
`plugin` answers. `torch_export` has what is used of torch.export. Importing this module imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def compile(  # as torch.compile, and with the module's name in front
    fn: Any,
    args: Sequence[Any] | None,
    path: str | os.PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> str:
    """Compiles `fn(*args, **kwargs)` for inference and writes a package, with the weights, into the folder `path`.

    Another process loads the package with `load` and runs the package; that process tunes and compiles nothing. Fused
    and tuned as by `torch.compile(fn, backend="litz")`, whose `mode=` and `options=` these are; CUDA graphs are not
    recorded.

    fn: a module, or a function of tensors, that torch.export takes; or the ExportedProgram that torch.export has made,
    which has its dynamic shapes, and for which args may be None. dynamic_shapes: as torch.export's, for sizes that may
    vary; all others are fixed. path: a folder that is not there yet. Returns the path. Errors: PackageError, what
    torch.export raises, and what compiling raises.
    """
    from .compiling import compile_package

    return str(compile_package(fn, args, path, kwargs, mode=mode, options=options, dynamic_shapes=dynamic_shapes))


def load(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """Returns what `compile` wrote, as a callable with the signature of the function that was compiled.

    The callable runs without gradients. Errors: PackageError if the package is damaged, was made with another torch or
    for another device, or lies where others may write (`LITZ_TRUST` names whom you trust); on a call PackageInputError
    for inputs that the package was not made for. A package is code: load only what you would run.
    """
    from pathlib import Path

    from litz.options import make_options
    from litz.origins.trust import make_trust

    from .package import load_package

    return load_package(Path(path), make_trust(make_options().trust))


__all__ = ["compile", "load"]
