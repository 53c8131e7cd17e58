"""What a compile depends on beside its graph, as the parts of a key: versions, sources, settings, options, devices.

In: a graph and its compiler. Out: `Part`s. Errors: NotCacheable, where a part cannot say what its results depend on.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.errors import CompilerNotFoundError
from litz.options import Options, core_options
from litz.origins.sources import sources_digest, version_of
from litz.runtime.graph_entry import FORMAT, NotCacheable
from litz.targets.cpp import build as cpp_build
from litz_plugins import Target, Uncacheable
from litz_plugins.loading import Source
from litz_plugins.strict import variable

from .key import Part

if TYPE_CHECKING:
    from litz.driver.compiler import Compiler

_WRITTEN = ("benchmark_kernels",)
"""Options that change no code, and what is written beside it."""


def version_parts() -> Iterator[Part]:
    """Yields the versions of litz, Python, torch and Triton as parts of a key."""
    yield Part("format", str(FORMAT), "litz")
    packages = [sys.modules[name] for name in ("litz", "litz_plugins")]
    sources = " ".join(sources_digest(str(Path(str(package.__file__)).parent)) for package in packages)
    yield Part("litz", f"{version_of('litz')} {sources}", f"litz {version_of('litz')}")
    yield Part("Python", sys.version, "the interpreter")
    yield Part("torch", f"{torch.__version__} {torch.version.git_version} {torch.version.cuda}", "the installation")
    yield Part("Triton", version_of("triton") or "none", "the installation")


def torch_part() -> Part:
    """Returns the part of a key that holds the settings of torch that lowering, costs or code may depend on."""
    lines = [f"{name} = {_read(read)}" for name, read in _TORCH_SETTINGS.items()]
    return Part("torch's settings", "\n".join(lines), "the program, by torch.set_... or torch.backends")


def _read(setting: Callable[[], Any]) -> Any:
    try:
        return setting()
    except (RuntimeError, AttributeError) as error:
        return error  # torch's old and new settings contradict each other, and it says so


_TORCH_SETTINGS: Mapping[str, Callable[[], Any]] = {
    "default_dtype": torch.get_default_dtype,
    "deterministic": torch.get_deterministic_debug_mode,
    "fill_uninitialized_memory": lambda: getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "num_threads": torch.get_num_threads,
    "cudnn": lambda: _settings(torch.backends.cudnn, "enabled", "benchmark", "deterministic", "allow_tf32"),
    "cuda.matmul": lambda: _settings(
        torch.backends.cuda.matmul,
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ),
    "attention": lambda: [
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
    ],
    "cudnn version": lambda: torch.backends.cudnn.version() if torch.cuda.is_available() else None,
    "mkldnn": lambda: [torch.backends.mkldnn.is_available(), _settings(torch.backends.mkldnn, "enabled")],
}


def _settings(module: Any, *names: str) -> list[Any]:
    return [getattr(module, name, None) for name in names]


def option_parts(compiler: Compiler) -> Iterator[Part]:
    """Yields a part for each option that may change the code, and one each for the vetoes and the preferences if there
    are any."""
    options = compiler.options
    for row in core_options():
        if (row.affects_code or row.name in _WRITTEN) and row.name not in _BY_CONTENT:
            yield Part(f"option {row.name}", repr(options[row.name]), f"options=, {row.env[0]} or mode=")
    aside = {spec.name for spec in compiler.plugins.option_specs() if not spec.affects_code}
    for name, value in options.plugin_values:
        if name not in aside:
            yield Part(f"option {name}", repr(value), f"options= or {variable(name)}")
    if compiler.vetoes.keys:
        yield Part("vetoes", "\n".join(sorted(compiler.vetoes.keys)), "options= or LITZ_VETO")
    if compiler.preferences.ways:
        given = sorted(f"{key}={way}" for key, way in compiler.preferences.ways.items())
        yield Part("preferences", "\n".join(given), "options= or LITZ_PREFER")


_BY_CONTENT = frozenset({"cpp.compiler", "calibration"})
"""Options that name what is in the key by its content: the compiler's version, the figures of a target."""


def device_parts(graph: Graph, compiler: Compiler) -> Iterator[Part]:
    """Yields the parts for the target of each device that the graph touches, the processor, and what builds code for
    the processor. Errors: NotCacheable."""
    yield from devices_part(devices_of(graph), compiler)


def devices_of(graph: Graph) -> set[torch.device]:
    """Returns the devices of the graph's tensors, and those that its calls name."""
    return set(torch_api.devices_in([(node.meta.get("val"), node.args, node.kwargs) for node in graph.nodes]))


def devices_part(devices: Iterable[torch.device], compiler: Compiler) -> Iterator[Part]:
    """Yields the parts of a key that say what `devices` and the CPU are. Errors: NotCacheable where a target's kernels
    need more than their source."""
    for device in sorted({*devices, torch.device("cpu")}, key=str):
        spec = compiler.specs.get(device.type)
        if spec is None:
            continue  # the compile says so
        if not getattr(spec.codegen, "loads_from_source", False):
            who = f"the plugin {spec.plugin!r}, which makes kernels for {device.type},"
            raise NotCacheable(f"{who} does not say that it loads them from their source alone")
        generator = type(spec.codegen)
        text = f"{target_text(compiler.target_of(device))}\nby {generator.__module__}.{generator.__qualname__}"
        yield Part(f"target {device}", text, f"the machine, by {spec.plugin}")
    yield processor_part(compiler.options)
    yield compiler_part(compiler.options)


def processor_part(options: Options) -> Part:
    """Returns the part of a key that tells this processor from another."""
    text = f"{torch.backends.cpu.get_cpu_capability()} {cpp_build.cpu_flags()}"
    return Part("processor", text, "the machine")


def compiler_part(options: Options) -> Part:
    """Returns the part of a key that says which C++ compiler, flags and libraries build kernels."""
    try:
        found = cpp_build.toolchain(options)
    except CompilerNotFoundError:
        found = ("no C++ compiler",)
    return Part("C++ compiler", "\n".join(found[:3]), "options=, LITZ_CXX, CXX or the machine")


def target_text(target: Target) -> str:
    """Returns every field of a target as text, a line each: equal texts mean equal targets."""
    lines = []
    for field in dataclasses.fields(target):
        value = getattr(target, field.name)
        if isinstance(value, Mapping):
            value = sorted((str(key), repr(item)) for key, item in value.items())
        lines.append(f"{field.name} = {sorted(value) if isinstance(value, frozenset) else value!r}")
    return "\n".join(lines)


def group_part(graph: Graph) -> Part | None:
    """Returns the part for the process groups that the graph communicates in: this process's rank and the groups'
    ranks; None for a graph that does not communicate."""
    groups = set()
    for node in graph.nodes:
        if node.op == "call_function" and torch_api.is_collective(node.target):
            groups |= {item for item in (*node.args, *node.kwargs.values()) if isinstance(item, str)}
    if not groups:
        return None
    store = torch_api.default_store()
    lines = [f"rank {None if store is None else store[1]}"]
    for name in sorted(groups):
        lines.append(f"{name}: {torch_api.group_ranks(name)}")  # no ranks of a word that is no group's name
    return Part("process groups", "\n".join(lines), "the program, by torch.distributed")


# ------------------------------------------------------------------------------------------------------------- plugins


def plugin_parts(compiler: Compiler) -> Iterator[Part]:
    """Each plugin that may change what a graph becomes: its version, its entry point, its source, and what it says
    itself. Errors: NotCacheable."""
    plugins = compiler.plugins
    builtin = [row.name for row in plugins.listing() if row.status == "builtin"]
    yield Part("built-in plugins", " ".join(builtin), "LITZ_DISABLE_PLUGINS or disable_plugins")
    said = plugins.cache_fingerprints(compiler.options)
    for source in plugins.deciders():
        own = said.get(source.name)
        if isinstance(own, Uncacheable):
            raise NotCacheable(f"the plugin {source.name} says: {own.reason}")
        if own is None and not source.dist and not isinstance(source.obj, ModuleType):
            problem = "was passed in as an object, and has no litz_cache_fingerprint to say what it holds"
            raise NotCacheable(f"the plugin {source.name} {problem}")
        # One file may hold several plugins: which of them the entry point names is no part of the file's digest.
        text = f"{source.dist} {source.version} {source.target}\n{plugin_sources(source)}\n{own or ''}"
        yield Part(f"plugin {source.name}", text, source.origin)


def goes_by_anything(compiler: Compiler) -> bool:
    """Returns whether there is a plugin of which nobody knows that it goes by no names: one that may change results and
    does not have the hook, which asks to look at what they depend on."""
    answering = compiler.plugins.answering("litz_cache_fingerprint")
    return any(source.name not in answering for source in compiler.plugins.deciders())


def plugin_sources(source: Source) -> str:
    """Returns the digest of the source files of a plugin's package, or of its one file. Errors: NotCacheable for a
    plugin without a source file and for a package that is too large."""
    obj = source.obj
    module = obj if isinstance(obj, ModuleType) else sys.modules.get(type(obj).__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        raise NotCacheable(f"the plugin {source.name} has no source file")
    # A script's plugin may lie beside anything: of what is not installed only the plugin's own package counts.
    whole = sys.modules.get(module.__name__.partition(".")[0]) if source.dist else module
    package = getattr(whole, "__path__", None)
    if not package:
        return sources_digest(str(file))
    return " ".join(sources_digest(str(folder)) for folder in package)
