"""Compiling ahead of time: in, a function or module and example arguments; out, a package that another process loads.

    torch.export, unless that was done -> Graph -> the pipeline's stages, as just in time -> `litz_aot.package`

What is tuned, fused and generated is what `torch.compile(fn, backend="litz")` would run: the same stages do it.
"""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from litz import pipeline
from litz.capture import torch_api
from litz.capture.graph import Graph, make_graph
from litz.codegen.sizes import python_text
from litz.driver.retry import starting_over
from litz.errors import FunctionPlaceError
from litz.origins.operations import Provenance
from litz_plugins import CodegenContext, Exporter, KernelSource, Target
from litz_plugins.manager import Plugins

from . import package, torch_export
from .code import Code
from .errors import PackageError


def compile(  # as torch.compile, and with the module's name in front
    fn: Any,
    args: Sequence[Any] | None,
    path: str | os.PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    plugins: Plugins | None = None,
) -> str:
    """Compiles `fn(*args, **kwargs)` for inference and writes a package, with the weights, into the folder `path`.

    Another process loads the package with `load` and runs the package; that process tunes and compiles nothing. Fused
    and tuned as by `torch.compile(fn, backend="litz")`, whose `mode=` and `options=` these are; CUDA graphs are not
    recorded.

    fn: a module, or a function of tensors, that torch.export takes; or the ExportedProgram that torch.export has
    made, which has its dynamic shapes, and for which args may be None. dynamic_shapes: as torch.export's, for sizes
    that may vary; all others are fixed. path: a folder that is not there yet. plugins: for tests, not the installed
    ones. Returns the path. Errors: PackageError, what torch.export raises, and what compiling raises."""
    folder = Path(path)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise PackageError("there is something already", path=str(folder), todo="name a folder that is not there yet")
    given = {"args": args, "kwargs": kwargs, "dynamic_shapes": dynamic_shapes}
    if torch_export.is_exported(fn):
        _check_arguments(fn, given)
    elif args is None:
        raise PackageError("the function has no arguments", todo="give args, a tuple, as torch.export takes it")
    compiler = pipeline.make_compiler(mode, {**(options or {}), "cuda_graphs": False}, plugins)
    with torch_api.compile_lock:  # torch.export takes one thread at a time
        return str(starting_over(lambda own: _compile(fn, given, folder, own), compiler))


def _check_arguments(program: Any, given: Mapping[str, Any]) -> None:
    """PackageError for what says of an ExportedProgram other things than the program says itself."""
    if given["dynamic_shapes"] is not None:
        todo = "leave dynamic_shapes out; give them to torch.export.export"
        raise PackageError("an ExportedProgram has its dynamic shapes already", todo=todo)
    problem = "" if given["args"] is None else torch_export.misfit(program, given["args"], given["kwargs"] or {})
    if problem:
        todo = "give args=None, or what the program was exported for"
        raise PackageError(f"the arguments do not fit the ExportedProgram: {problem}", todo=todo)


def _compile(fn: Any, given: Mapping[str, Any], folder: Path, compiler: pipeline.Compiler) -> Path:
    with torch.no_grad():
        if not torch_export.is_exported(fn):
            example = (tuple(given["args"]), dict(given["kwargs"] or {}))
            program = torch_export.export(_as_module(fn), *example, given["dynamic_shapes"])
        else:
            program = fn
        exported = torch_export.decomposed(program, pipeline.decompositions(compiler))
    with torch_api.real_mode():
        state = [item for item in exported.inputs if item["kind"] == "state"]
        positions = frozenset(n for n, item in enumerate(exported.inputs) if item["kind"] == "state")
        names = zip(exported.module.graph.find_nodes(op="placeholder"), exported.inputs, strict=True)
        known_as = Provenance(inputs={node.name: item["name"] for node, item in names})
        graph = make_graph(_label(fn), exported.module, "inference", static_inputs=positions, provenance=known_as)
        guards = torch_api.guard_count(graph.shape_env)
        made = pipeline.make_graph_code(graph, compiler)
        target = only_target([buffer.device for buffer in made.plan.program.buffers.values()], compiler)
        kernels = [kernel for each in made.plan.functions for kernel in each.launched]
        launched = [(kernel.device, made.sources[kernel.name]) for kernel in kernels]
        exporters = Exporters(compiler)
        contents = package.Contents(
            code=Code(
                made.wrapper.text,
                made.wrapper.objects,
                made.sources,
                {item["name"]: exported.state[item["name"]] for item in state},
            ),
            target=target,
            facts={
                "inputs": _inputs(exported.inputs, graph),
                "outputs": exported.outputs,
                "in_spec": exported.in_spec,
                "out_spec": exported.out_spec,
                "guards": _guards(graph, guards, exported.ranges),
                "needs": needs_of(launched, target, exporters),
            },
            exporter=exporters.of(torch.device(target.type)),
        )
    return _write(contents, made, exporters, folder)


class Exporters:
    """The exporters of devices and kernels: plugins are asked once about each type of device and each kernel."""

    def __init__(self, compiler: pipeline.Compiler) -> None:
        self.compiler = compiler
        self._known: dict[tuple[str, str], Exporter] = {}

    def of(self, device: torch.device, source: KernelSource | None = None) -> Exporter:
        """Returns what exports a kernel, or for None a package for the device. Errors: PackageError."""
        key = device.type, "" if source is None else source.name
        if key not in self._known:
            self._known[key] = self._select(device, source)
        return self._known[key]

    def _select(self, device: torch.device, source: KernelSource | None) -> Exporter:
        spec, what = self.compiler.specs.get(device.type), f"the kernel {source.name}" if source else "kernels"
        select = self.compiler.plugins.select_exporter
        found = None if spec is None else select(spec, source, self.compiler.options)
        if found is None:
            owner = f"the plugin {spec.plugin!r} compiles" if spec else "nothing compiles"
            problem = f"{owner} for devices of type {device.type!r}, and no plugin exports {what} of that"
            todo = "compile it just in time, or install a plugin with the hook litz_select_exporter for such devices"
            raise PackageError(problem, todo=todo)
        return found


def _write(contents: package.Contents, made: pipeline.Made, exporters: Exporters, folder: Path) -> Path:
    """Writes the package into a folder that appears whole or not at all."""
    compiler = exporters.compiler
    devices = {kernel.name: kernel.device for variant in made.plan.functions for kernel in variant.launched}

    def pack(source: KernelSource, into: Path, common: Path) -> tuple[Exporter, Mapping[str, Any]]:
        device = devices[source.name]
        exporter = exporters.of(device, source)
        context = CodegenContext(compiler.options, compiler.target_of(device), made.plan.program, compiler.cache)
        with compiler.plugins.blaming(exporter.plugin, f"pack of {exporter.module}", node=source.name):
            return exporter, import_module(exporter.module).pack(source, context, into, common)

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".litz-", dir=folder.parent))
    try:
        package.write_package(contents, scratch, pack)
        for path in scratch.rglob("*"):  # whatever the process's mask: who loads the package looks
            path.chmod(path.stat().st_mode & ~0o022)
        if folder.is_dir():
            folder.rmdir()
        os.replace(scratch, folder)
    except FunctionPlaceError as error:
        raise PackageError(error.problem, todo=error.todo or "compile it just in time") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def needs_of(
    launched: Sequence[tuple[torch.device, KernelSource]], target: Target, exporters: Exporters
) -> list[tuple[str, str, str]]:
    """Returns (plugin, dist, version) of the plugins whose code launches these kernels, of those that have a dist.
    litz-aot's own is what the format stands for."""
    compiler, device = exporters.compiler, torch.device(target.type)
    found = {compiler.specs[type_].plugin for type_ in {target.type, *(its.type for its, _ in launched)}}
    used = [exporters.of(device), *(exporters.of(its, source) for its, source in launched)]
    found |= {exporter.plugin for exporter in used if exporter.module.partition(".")[0] != "litz_aot"}
    external = (source for source in compiler.plugins.sources() if source.status == "external")
    return [(source.name, source.dist, source.version) for source in external if source.name in found and source.dist]


def _as_module(fn: Callable[..., Any]) -> torch.nn.Module:
    if isinstance(fn, torch.nn.Module):
        return fn

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

    module = Function()
    if inspect.isfunction(fn):
        module.forward = fn  # type: ignore[method-assign]  # with its signature, which dynamic_shapes follows
    return module


def _label(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__name__', type(fn).__name__)}_ahead".replace("<lambda>", "function")


def _inputs(inputs: Sequence[dict[str, Any]], graph: Graph) -> list[dict[str, Any]]:
    """Adds to the record of each tensor input what a tensor has to look like: dtype, device, sizes and strides."""
    pairs = zip(inputs, graph.placeholders, strict=True)
    return [item | _layout(node.meta["val"]) if item["kind"] == "tensor" else item for item, node in pairs]


def _layout(value: Any) -> dict[str, Any]:
    """A tensor's dtype, device, sizes and strides (numbers, or texts over sizes)."""
    return {
        "dtype": str(value.dtype),
        "device": str(value.device),
        "size": [_size(size) for size in value.shape],
        "stride": [_size(step) for step in value.stride()],
    }


def _size(value: Any) -> int | str:
    expr = torch_api.sympy_of(value)
    return int(expr) if expr.is_Integer else python_text(expr)


def _guards(graph: Graph, known: int, ranges: Mapping[Any, tuple[int, int | None]]) -> list[str]:
    """Returns what must hold of the inputs' sizes: the ranges that were exported, and what compiling has decided since.
    PackageError for sizes that cannot be read off the inputs."""
    tensors = [n.meta["val"] for n in graph.placeholders if isinstance(n.meta.get("val"), torch.Tensor)]
    exprs = [torch_api.sympy_of(size) for tensor in tensors for size in (*tensor.shape, *tensor.stride())]
    sizes = {expr for expr in exprs if expr.is_Symbol}
    hidden = {symbol for expr in exprs for symbol in expr.free_symbols} - sizes
    if hidden:
        names = ", ".join(sorted(map(str, hidden)))
        raise PackageError(f"no input has {names} as a size", todo="name sizes by plain torch.export.Dim only")
    decided = [expr for expr in torch_api.guards_since(graph.shape_env, known) if expr.free_symbols <= sizes]
    found = [python_text(expr) for expr in decided]
    for symbol, (low, high) in ((symbol, ends) for symbol, ends in ranges.items() if symbol in sizes):
        found.append(f"{low} <= {symbol}" + (f" <= {high}" if high is not None else ""))
    return list(dict.fromkeys(found))


def only_target(devices: Iterable[torch.device], compiler: pipeline.Compiler) -> Target:
    """Returns what kernels of a graph on these devices are made for: the one device beside the CPU, else the CPU.
    PackageError if there are several."""
    others = sorted({device for device in devices if device.type != "cpu"}, key=str)
    targets = [compiler.target_of(device) for device in others or [torch.device("cpu")]]
    if len(targets) > 1 or targets[0].index not in (None, 0):
        names = ", ".join(map(str, others))
        raise PackageError(
            f"the graph runs on {names}", todo="a package is for the CPU and one other device, as cuda:0"
        )
    return targets[0]
