"""An artifact: a graph that was compiled ahead of time, as one block of bytes, and what calls the graph.

In: bytes that `Artifact.serialize` returned. Out: a callable, in a process that compiles nothing: neither litz's
compiler nor Triton is imported, and nothing is unpickled. A graph for inference needs no part of AOTAutograd either,
unless what it returns are views of its inputs. An artifact is code: load only what you would run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.errors import FunctionPlaceError
from litz.origins.trust import OWN, Trust
from litz.runtime.compiled_graph import Entry, refuse_tracing
from litz.runtime.retained import retaining
from litz.runtime.stored import imported

from . import container
from .code import LoadedCode
from .edited import changed_sources
from .errors import ArtifactError, PackageError
from .inputs import Inputs
from .package import unfit_here

FORMAT, VERSION = "litz-artifact", 1
MANIFEST = "artifact.json"
AGAIN = "make it anew here, with litz.standalone_compile"
"""The advice for an artifact that cannot be used."""
PRIVATE = 0o600
"""The mode of a file: an artifact is code."""


class Artifact:
    """A compiled graph: call it with the graph's inputs. `save` and `serialize` give it to other processes.

    run: takes the graph's inputs, and returns its flat outputs. call: what of a call is known, as `Inputs` has it, with
    "out_spec", and "autograd": does it record gradients? make: returns the artifact as bytes.
    """

    def __init__(
        self,
        run: Callable[..., Sequence[Any]],
        call: Mapping[str, Any],
        make: Callable[[], bytes],
        checked: bool = True,
    ) -> None:
        self._run, self._make, self._data = run, make, b""
        self._inputs = Inputs(call)
        self._autograd = bool(call["autograd"])
        self._out_spec = pytree.treespec_loads(call["out_spec"])

    def __call__(self, *args: Any) -> Any:
        """Returns what the graph returns for these inputs, which are compared with those that it was compiled for.
        Inputs that the graph writes are written. Errors: ArtifactInputError for other inputs; TracedCallError under
        FakeTensorMode and the like."""
        refuse_tracing()
        self._inputs.check(args)
        if self._autograd:
            return pytree.tree_unflatten(list(self._run(*args)), self._out_spec)
        with torch.no_grad():
            return pytree.tree_unflatten(list(self._run(*args)), self._out_spec)

    def serialize(self) -> bytes:
        """Returns the artifact as bytes, for `litz.deserialize` in any process with equal versions and an equal device.
        Errors: ArtifactError for what another process could not run, with the reason."""
        if not self._data:
            self._data = self._make()
        return self._data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `serialize()` to a file, which appears whole or not at all. Errors: ArtifactError, OSError."""
        data, path = self.serialize(), Path(path)
        number, name = tempfile.mkstemp(prefix=".litz-", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            os.chmod(name, PRIVATE)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def load(path: str | os.PathLike[str], trust: Trust = OWN) -> Artifact:
    """Returns the artifact in a file. Errors: those of `deserialize`, and ArtifactError for a file that others than
    those of `trust` may write."""
    path = Path(path)
    problem = trust.problem_of(path)
    if problem:
        raise ArtifactError("nothing is loaded from a file that others may change", path=str(path), todo=problem)
    try:
        with trust.opened(path) as file:
            data = file.read()
    except OSError as cause:
        raise ArtifactError(f"the file cannot be read: {cause}", path=str(path)) from cause
    return deserialize(data, str(path))


def deserialize(data: bytes, path: str = "") -> Artifact:
    """Returns the artifact that `serialize` has made bytes of. path: for errors.

    Errors: ArtifactError for bytes that are damaged, and for what was made with another torch, for another device, or
    with a litz or a plugin that was edited since.
    """
    try:
        files = container.unpack(data)
        spec = json.loads(files.pop(MANIFEST))
        if (spec["format"], spec["version"]) != (FORMAT, VERSION):
            raise ArtifactError(f"this is {spec['format']} {spec['version']}, not {FORMAT} {VERSION}", todo=AGAIN)
        problem, todo = unfit_here(spec)
        if not problem:
            problem = changed_sources(spec["sources"])
        if problem:
            raise ArtifactError(problem, todo=todo or AGAIN)
        run = _loaded(files, spec)
    except (ArtifactError, PackageError, FunctionPlaceError) as error:
        raise ArtifactError(error.problem, path=path, todo=error.todo or AGAIN) from error
    except (ArithmeticError, AttributeError, ImportError, LookupError, TypeError, ValueError) as cause:
        raise ArtifactError(f"it is damaged: {cause}", path=path, todo=AGAIN) from cause
    except (RecursionError, RuntimeError, SyntaxError) as cause:
        problem = f"it is damaged: {type(cause).__name__}: {cause}"
        raise ArtifactError(problem, path=path, todo=AGAIN) from cause
    kept = bytes(data)
    return Artifact(run, spec["call"], lambda: kept)


def _loaded(files: Mapping[str, bytes], spec: Mapping[str, Any]) -> Callable[..., Sequence[Any]]:
    """Returns a function that runs the graph, with its kernels loaded from a private folder, which goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="litz-artifact-"))
    try:
        container.write(files, folder)
        codes = {name: LoadedCode(folder, name, data, files) for name, data in spec["graphs"].items()}
        entries = {name: _entry(codes[name], data) for name, data in spec["graphs"].items()}
        run = _around(entries, codes, spec["call"])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run, _remove, folder, os.getpid())
    return run


def _remove(folder: Path, owner: int) -> None:
    """Removes a folder in the process that made it, not in one that was forked off."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _entry(code: LoadedCode, data: Mapping[str, Any]) -> Entry:
    return retaining(code.entry, data["overwritten"]) if data["overwritten"] else code.entry


def _around(
    entries: Mapping[str, Entry], codes: Mapping[str, LoadedCode], call: Mapping[str, Any]
) -> Callable[..., Sequence[Any]]:
    """The graph's function, in what AOTAutograd puts around it."""
    (main,) = (name for name in entries if name != "backward")
    state = [codes[main].tensors[name] for name in call["state"]]
    if call["outputs"] is not None:
        return partial(_plain, entries[main], state, call["outputs"])
    wrapped: Callable[..., Callable[..., Sequence[Any]]] = imported("litz_aot.autograd:wrapped")
    inner = wrapped(entries, call)
    return lambda *args: inner([*state, *args])


def _plain(entry: Entry, state: Sequence[torch.Tensor], returned: Sequence[int | None], *args: Any) -> Sequence[Any]:
    """Runs a graph that needs nothing around it. returned: for each output the position of the input that it is."""
    with torch.no_grad():
        found = entry([*state, *args])
    if any(at is not None for at in returned):
        given = [*state, *args]
        return [value if at is None else given[at] for value, at in zip(found, returned, strict=True)]
    return found
