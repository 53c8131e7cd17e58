"""A compiled graph as files: what the graph cache keeps, and what a process that finds it there needs.

In: a `GraphEntry`. Out: the files of a cache entry (a wrapper's text, kernels' texts, one file of tensors, and JSON
that says what is what), and from these the same entry again. Nothing is pickled; the cache's manifest vouches for
each file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from litz.errors import FunctionPlaceError, StaleEntryError
from litz_plugins import EntryFacts, KernelSource

from .stored import function_at, place_of, read_tensors, write_tensors

FORMAT = 5
"""Part of every key: to be raised when what an entry holds, or how it is read, changes."""
ENTRY, OBJECTS, WRAPPER, KEY = "graph.json", "objects.bin", "wrapper.py", "key.json"
LARGEST_OBJECTS = 64 << 20
"""Bytes of tensors that an entry holds at most."""

Strides = Sequence["tuple[int | str, ...] | None"]


class NotCacheable(Exception):
    """A graph cannot be kept in the graph cache; the message says why, to follow "because"."""


@dataclass(frozen=True)
class StoredKernel:
    """A kernel's source and the device that it runs on, as text. What is no buffer's name among the source's arguments
    is a likely value (an int) where the entry was read from files."""

    source: KernelSource
    device: str


@dataclass(frozen=True)
class GraphEntry:
    """A compiled graph as data.

    wrapper: the module's text. objects: what it names besides kernels and ops, by name. kernels: by name. facts: what
    plugins that wrap the entry are told (`litz.codegen.facts`). overwritten: positions of inputs whose memory kernels
    take over. output_strides: as `CompiledGraph.output_strides` has them, symbolic ones as
    Python text over the symbols. guards: conditions on sizes that compiling has decided, as such text. report: the
    compile's report (`litz.report.stored`). named: what of the wrapper can be called as the user calls it
    (`litz.origins.named`).
    """

    wrapper: str
    objects: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, StoredKernel] = field(default_factory=dict)
    facts: EntryFacts = field(default_factory=EntryFacts)
    overwritten: tuple[int, ...] = ()
    output_strides: Strides | None = None
    guards: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def kernel_files(self) -> Mapping[str, str]:
        """Returns the name of the file with a kernel's text, by kernel: equal texts, as those of equal layers, have one
        file, which is called as the first kernel."""
        found: dict[str, str] = {}
        files: dict[tuple[str, str], str] = {}
        for name, kernel in self.kernels.items():
            suffix = kernel.source.suffix or kernel.source.language
            found[name] = files.setdefault((kernel.source.text, suffix), f"{name}.{suffix}")
        return found

    def texts(self) -> dict[str, str]:
        """Returns the files that a reader looks at, by name."""
        return {WRAPPER: self.wrapper, **{self.kernel_files[name]: k.source.text for name, k in self.kernels.items()}}


def write_entry(entry: GraphEntry, folder: Path) -> None:
    """Writes all but `texts` into a folder. Raises NotCacheable (`check_storable` finds out without a folder)."""
    check_storable(entry)
    tensors = {name: value for name, value in entry.objects.items() if isinstance(value, torch.Tensor)}
    places = write_tensors(tensors, folder / OBJECTS)
    found = read_tensors(places, folder / OBJECTS)
    for name, tensor in tensors.items():
        if found[name].stride() != tensor.stride() or found[name].dtype != tensor.dtype:
            raise NotCacheable(f"the constant {name} lies in memory with gaps or overlaps")
    data = {
        "tensors": places,
        "functions": {name: place_of(value) for name, value in entry.objects.items() if name not in tensors},
        "kernels": {name: _kernel_data(kernel) for name, kernel in entry.kernels.items()},
        "kernel_files": entry.kernel_files,
        "facts": {name: sorted(v) if isinstance(v, frozenset) else v for name, v in vars(entry.facts).items()},
        "overwritten": entry.overwritten,
        "output_strides": entry.output_strides,
        "guards": entry.guards,
        "report": entry.report,
        "named": entry.named,
    }
    (folder / ENTRY).write_text(json.dumps(data), encoding="utf-8")


def read_entry(folder: Path) -> GraphEntry:
    """Returns the entry in a folder that the cache vouches for. Errors: OSError, ValueError, LookupError, ImportError,
    AttributeError, TypeError for what is not as `write_entry` writes it, or names what is not here."""
    data = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
    try:
        functions = {name: function_at(place) for name, place in data["functions"].items()}
    except FunctionPlaceError as error:
        raise ImportError(error.problem) from error
    strides = data["output_strides"]
    files = data["kernel_files"]
    texts = {file: (folder / file).read_text(encoding="utf-8") for file in dict.fromkeys(files.values())}
    return GraphEntry(
        wrapper=(folder / WRAPPER).read_text(encoding="utf-8"),
        objects={**read_tensors(data["tensors"], folder / OBJECTS), **functions},
        kernels={name: _read_kernel(name, kernel, texts[files[name]]) for name, kernel in data["kernels"].items()},
        facts=_read_facts(data["facts"]),
        overwritten=tuple(data["overwritten"]),
        output_strides=None if strides is None else tuple(None if s is None else tuple(s) for s in strides),
        guards=tuple(data["guards"]),
        report=data["report"],
        named=data["named"],
    )


def check_storable(entry: GraphEntry) -> None:
    """Raises NotCacheable for an entry that files cannot hold."""
    total = 0
    for name, value in entry.objects.items():
        if isinstance(value, torch.Tensor):
            total += _stored_bytes(name, value)
        else:
            try:
                place_of(value)
            except FunctionPlaceError as error:
                raise NotCacheable(f"it calls {name}, which no other process can import") from error
    if total > LARGEST_OBJECTS:
        raise NotCacheable(f"its constants have {total >> 20} MiB, more than {LARGEST_OBJECTS >> 20}")
    for name, kernel in entry.kernels.items():
        settings = kernel.source.settings
        if "unstorable" in settings:
            raise NotCacheable(f"{name} {settings['unstorable']}")
        try:
            again = json.loads(json.dumps(settings))
        except (TypeError, ValueError) as error:
            raise NotCacheable(f"the settings of {name} are no JSON") from error
        if again != _plain(settings):
            raise NotCacheable(f"the settings of {name} are no JSON")


def check_same(kept: GraphEntry, made: GraphEntry, graph: str) -> None:
    """Checks, in debug mode, that what a key led to is what was made now. Names of values may differ, which are in no
    kernel's text. Errors: StaleEntryError."""
    entries = [replace(e, facts=replace(e.facts, obstacle=str(bool(e.facts.obstacle)))) for e in (kept, made)]
    for what in ("guards", "output_strides", "overwritten", "facts"):
        before, now = (getattr(entry, what) for entry in entries)
        if before != now:
            raise StaleEntryError(graph, f"its {what.replace('_', ' ')} would be {now}, and are {before}")
    before, now = (sorted({k.source.text for k in entry.kernels.values()}) for entry in (kept, made))
    if before != now:
        differ = len(set(before) ^ set(now))
        raise StaleEntryError(graph, f"{differ} of the texts of its kernels differ from those that were made now")


def _stored_bytes(name: str, tensor: torch.Tensor) -> int:
    # Whatever is fake, quantised, sparse or of a subclass is more than its elements.
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        raise NotCacheable(f"the constant {name} is {type(tensor).__name__} of {tensor.layout}")
    if tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor() or tensor.device.type == "meta":
        raise NotCacheable(f"the constant {name} has no memory with its elements")
    return tensor.numel() * tensor.itemsize


def _plain(value: Any) -> Any:
    """Returns the value with lists for tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _kernel_data(kernel: StoredKernel) -> dict[str, Any]:
    source = kernel.source
    return {
        "language": source.language,
        "symbol": source.symbol,
        "arguments": [item if isinstance(item, (str, int)) else int(item) for item in source.arguments],
        "settings": dict(source.settings),
        "suffix": source.suffix,
        "device": kernel.device,
    }


def _read_kernel(name: str, data: Mapping[str, Any], text: str) -> StoredKernel:
    known = {key: data[key] for key in ("language", "symbol", "settings", "suffix")}
    return StoredKernel(KernelSource(name, text=text, arguments=tuple(data["arguments"]), **known), data["device"])


def _read_facts(data: Mapping[str, Any]) -> EntryFacts:
    kinds = {name: type(value) for name, value in vars(EntryFacts()).items()}
    return EntryFacts(**{name: kinds[name](value) for name, value in data.items()})
