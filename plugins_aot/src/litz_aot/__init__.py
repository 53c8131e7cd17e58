"""litz-aot: what is compiled ahead of time, for a process that compiles nothing.

    litz_aot.compile(model.eval(), (x,), "model.package")  # here: traced by torch.export, tuned, compiled, written
    run = litz_aot.load("model.package")  # in another process: nothing is tuned or compiled

    artifact = litz_aot.standalone_compile(graph, (x,))  # a graph, without dynamo; also `litz.standalone_compile`
    run = litz_aot.deserialize(artifact.serialize())  # in another process

`compiling` makes a package of what the compiler's stages made, `package` writes, loads and calls one; `standalone`
makes an artifact, and `artifact` loads and calls one. `cpp_kernels` and `triton_kernels` put the kernels of core's
targets into both, behind the hook that other targets have, which `plugin` answers. `torch_export`, `autograd` and
`graph_inputs` have what is used of private parts of torch. Importing this module imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifact import Artifact
    from .compiling import compile
    from .standalone import standalone_compile

_LATER = {"compile": ".compiling", "standalone_compile": ".standalone", "Artifact": ".artifact"}
"""Where that is which a process that only loads does not import."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)


def load(path: str | os.PathLike[str]) -> Callable[..., Any]:
    """Returns what `compile` or `Artifact.save` wrote: a callable with the signature of the function or graph that was
    compiled.

    A package, a folder, runs without gradients. Errors: PackageError, or of an artifact ArtifactError, if the package
    is damaged, was made with another torch or for another device, or lies where others may write (`LITZ_TRUST` names
    whom you trust); on a call PackageInputError or ArtifactInputError for inputs that the package was not made for. A
    package is code: load only what you would run."""
    from litz.options import make_options
    from litz.origins.trust import make_trust

    trust = make_trust(make_options().trust)
    if os.path.isfile(path):
        from .artifact import load

        return load(path, trust)
    from pathlib import Path

    from .package import load_package

    return load_package(Path(path), trust)


def deserialize(data: bytes) -> Artifact:
    """Returns the artifact that `Artifact.serialize` has made bytes of. Errors: ArtifactError for bytes that are
    damaged, or were made with another torch, for another device, or by a litz or a plugin that was edited since. An
    artifact is code: load only what you would run."""
    from .artifact import deserialize

    return deserialize(data)


__all__ = ["Artifact", "compile", "deserialize", "load", "standalone_compile"]
