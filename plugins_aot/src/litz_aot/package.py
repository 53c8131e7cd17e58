"""A package: a compiled graph in a folder, with its kernels' binaries and weights, for a process that compiles nothing.

In: a folder that `litz_aot.compile` wrote. Out: a callable. `package.json` says what is in it and what it was made for:
the versions, the device, the inputs; every file is checked by its SHA-256 sum. The folder holds code (a Python wrapper,
shared objects, cubins): load only what you would run.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.cache import manifest
from litz.errors import FunctionPlaceError
from litz.origins.sources import version_of
from litz.origins.trust import OWN, Trust
from litz.runtime.compiled_graph import refuse_tracing
from litz.runtime.wrapper_support import resolved
from litz_plugins import Exporter, Target
from litz_plugins.words import OWN_DISTS, install

from .code import COMMON, WEIGHTS, WRAPPER, Code, LoadedCode, Pack, write_code
from .errors import PackageError, PackageInputError

FORMAT, VERSION = "litz-package", 3
MANIFEST = "package.json"
LARGEST_MANIFEST = 1 << 26
"""Bytes: it has a line for each weight and size."""
AGAIN = "write it anew here, with litz_aot.compile"
"""The advice for a package that cannot be used."""


# Writing.


@dataclass(frozen=True)
class Contents:
    """The content of a package.

    code: the graph's; its state are the tensors that are inputs of kind "state". target: what it is made for.
    exporter: of its target. facts: what else loading and calling go by, JSON-able: inputs, outputs, in_spec,
    out_spec, guards, and needs, (plugin, dist, version) of those whose code has a part in it."""

    code: Code
    target: Target
    exporter: Exporter
    facts: Mapping[str, Any]


def write_package(contents: Contents, folder: Path, pack: Pack) -> None:
    """Writes a package into an empty folder."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "torch": str(torch.__version__),
        "exporter": contents.exporter.module,
        "device": device_facts(contents.target, contents.exporter.module),
        **write_code(contents.code, folder, folder / COMMON, pack),
        **contents.facts,
        "sums": manifest.sums(folder),
    }
    (folder / MANIFEST).write_text(json.dumps(data, indent=1), encoding="utf-8")


# Loading.


def load_package(folder: Path, trust: Trust = OWN) -> Package:
    """Loads a package and returns the callable. Errors: PackageError for a package that is damaged, was made for
    another machine, device or version, or lies where others than those of `trust` may write."""
    problem = trust.problem_of(folder)
    if problem:
        raise PackageError("nothing is loaded from a folder that others may change", path=str(folder), todo=problem)
    try:
        data = json.loads(manifest.plain_file(folder, MANIFEST, LARGEST_MANIFEST, trust))
        if not isinstance(data, dict):
            raise ValueError(f"the file holds {type(data).__name__}, where a package has an object")
    except (OSError, ValueError, RecursionError) as cause:
        problem = f"{MANIFEST} cannot be read: {cause}"
        raise PackageError(problem, path=str(folder), todo="name a folder that litz_aot.compile wrote") from cause
    try:
        problem, todo = _unfit(folder, data, trust)
        if problem:
            raise PackageError(problem, path=str(folder), todo=todo)
        return Package(folder, data)
    except (PackageError, FunctionPlaceError) as error:
        raise PackageError(error.problem, path=str(folder), todo=error.todo or AGAIN) from error
    except (AttributeError, ImportError, LookupError, TypeError, ValueError, RuntimeError, SyntaxError) as cause:
        problem = f"{MANIFEST} is damaged: {type(cause).__name__}: {cause}"
        raise PackageError(problem, path=str(folder), todo=AGAIN) from cause


def _unfit(folder: Path, data: Mapping[str, Any], trust: Trust) -> tuple[str, str]:
    """Returns why a package cannot be used here and what to do about it; '' if it can."""
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        return f"this is {data.get('format')} {data.get('version')}, not {FORMAT} {VERSION}", AGAIN
    problem, todo = unfit_here(data)
    if problem:
        return problem, todo or AGAIN
    sums = manifest.check_sums(data["sums"])
    for name, wanted_sum in sums.items():
        if not manifest.agrees(folder, name, wanted_sum, trust):
            return f"{name} is missing or damaged, or others may write to it", AGAIN
    for name in (WRAPPER, *([WEIGHTS] if data["tensors"] else [])):
        if name not in sums:
            return f"no sum vouches for {name}", AGAIN
    return "", ""


def unfit_here(data: Mapping[str, Any]) -> tuple[str, str]:
    """Returns why what was made elsewhere cannot run in this process, and what to do about it ('' where it is to be
    made anew); two empty texts if it can. data: with torch, needs, exporter and device, as `write_package` has them."""
    if data["torch"] != str(torch.__version__):
        return f"it was made with torch {data['torch']}, and this is torch {torch.__version__}", ""
    for plugin, dist, version in data["needs"]:
        found = version_of(dist)
        if found != version:
            problem = f"it needs the plugin {plugin!r} ({dist} {version}), and {found or 'none'} is here"
            own = f"{install(plugin)} of version {version}" if plugin in OWN_DISTS else f"pip install {dist}=={version}"
            return problem, own
    wanted = data["device"]
    target = importlib.import_module(data["exporter"]).here()
    if target.assumed:
        return f"it was made for a {wanted['name']}, and there is no {wanted['type'].upper()} device here", ""
    here = device_facts(target, data["exporter"])
    if here["made_for"] != wanted["made_for"]:
        device = f"{here['name']}, {here['made_for']}"
        return f"it was made for {wanted['name']}, {wanted['made_for']}; this is {device}", ""
    return "", ""


def device_facts(target: Target, exporter: str) -> dict[str, str]:
    """Returns what a device is, and what of it binaries depend on."""
    made_for = importlib.import_module(exporter).made_for(target)
    return {"type": target.type, "name": target.name or target.type.upper(), "made_for": made_for}


class Package:
    """A loaded package: call it as the function that it was made of. A call records no gradients."""

    def __init__(self, folder: Path, data: Mapping[str, Any]) -> None:
        self.folder, self._data = folder, data
        code = LoadedCode(folder, "", data, data["sums"])
        self._entry = code.entry
        self.state = {item["name"]: code.tensors[item["name"]] for item in data["inputs"] if item["kind"] == "state"}
        self._in_spec, self._out_spec = (pytree.treespec_loads(data[name]) for name in ("in_spec", "out_spec"))
        self._guards = [(text, compile(text, "<litz guard>", "eval")) for text in data["guards"]]
        self._user = [item for item in data["inputs"] if item["kind"] != "state"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Checks the arguments against those that the package was made for, and returns the function's results.
        Parameters and inputs that the function changes are changed. Errors: PackageInputError for other arguments,
        TracedCallError under FakeTensorMode and the like."""
        refuse_tracing()
        given = self._flat(args, kwargs)
        self._check(given)
        plain = [resolved(value) if isinstance(value, torch.Tensor) else value for value in given]
        values = iter(plain)
        arguments = [self.state[i["name"]] if i["kind"] == "state" else next(values) for i in self._data["inputs"]]
        with torch.no_grad():
            results = self._entry(list(arguments))
            returned = []
            for result, item in zip(results, self._data["outputs"], strict=True):
                if item["kind"] == "state":
                    self.state[item["name"]].copy_(result)
                elif item["kind"] == "input":
                    given[item["at"]].copy_(result)
                else:
                    returned.append(result)
        return pytree.tree_unflatten(returned, self._out_spec)

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        known = self._in_spec.unflatten([None] * self._in_spec.num_leaves)[1]
        if set(known) == set(kwargs):
            kwargs = {name: kwargs[name] for name in known}  # their order does not matter
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise PackageInputError(f"the arguments are built as {spec}; the package was made for {self._in_spec}")
        return flat

    def _check(self, given: Sequence[Any]) -> None:
        """Raises PackageInputError for inputs that the code was not made for."""
        sizes: dict[str, int] = {}
        for value, wanted in zip(given, self._user, strict=True):
            name = wanted["name"]
            if wanted["kind"] == "constant":
                if value != wanted["value"]:
                    raise PackageInputError(f"{name} is {value!r}; the package was made for {wanted['value']!r}")
                continue
            if not isinstance(value, torch.Tensor):
                raise PackageInputError(f"{name} is {type(value).__name__}; the package was made for a tensor")
            if value.layout != torch.strided or value.is_nested:
                raise PackageInputError(
                    f"{name} is of the layout {value.layout}; the package was made for memory with strides"
                )
            if str(value.dtype) != wanted["dtype"] or str(value.device) != wanted["device"]:
                made = f"{wanted['dtype']} on {wanted['device']}"
                raise PackageInputError(f"{name} is {value.dtype} on {value.device}; the package was made for {made}")
            if value.dim() != len(wanted["size"]):
                raise PackageInputError(
                    f"{name} has {value.dim()} dimensions; the package was made for {len(wanted['size'])}"
                )
            for size, text in zip(value.shape, wanted["size"], strict=True):
                if isinstance(text, str) and text.isidentifier():
                    sizes.setdefault(text, size)
        for value, wanted in zip(given, self._user, strict=True):
            if wanted["kind"] == "tensor":
                self._check_layout(value, wanted, sizes)
        for text, code in self._guards:
            if not eval(code, {"math": math}, sizes):
                raise PackageInputError(f"the package was made for sizes with {text}; these are {sizes}")

    def _check_layout(self, value: torch.Tensor, wanted: Mapping[str, Any], sizes: dict[str, int]) -> None:
        size, stride = ([_value(text, sizes) for text in wanted[key]] for key in ("size", "stride"))
        if list(value.shape) != size:
            made = ", ".join(map(str, wanted["size"]))
            raise PackageInputError(
                f"{wanted['name']} has the sizes {list(value.shape)}; the package was made for [{made}]"
            )
        strides = zip(value.shape, value.stride(), stride, strict=True)
        if value.numel() and any(n > 1 and have != want for n, have, want in strides):
            have = list(value.stride())
            raise PackageInputError(f"{wanted['name']} has the strides {have}; the package was made for {stride}")


def _value(text: int | str, sizes: Mapping[str, int]) -> int:
    return text if isinstance(text, int) else int(eval(text, {"math": math}, dict(sizes)))
