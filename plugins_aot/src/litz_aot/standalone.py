"""Compiling a graph without dynamo: in, an FX graph and its inputs; out, an artifact.

    the graph with flat outputs, its tensors as inputs -> AOTAutograd and the pipeline's stages, as just in time ->
    Artifact

What is tuned, fused and generated is what `torch.compile(..., backend="litz")` would run of the same graph.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch.utils import _pytree as pytree

from litz import pipeline
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.capture.kept import GraphStore
from litz.driver.builtin import builtin_plugins
from litz.driver.retry import starting_over
from litz.driver.stages import capture
from litz.errors import FunctionPlaceError
from litz.options import make_plugin_settings
from litz.runtime.compiled_graph import CompiledGraph
from litz_plugins import CodegenContext, Exporter, KernelSource
from litz_plugins.manager import Plugins, make_plugins

from . import container, graph_inputs
from .artifact import AGAIN, FORMAT, MANIFEST, VERSION, Artifact
from .autograd import facts_of, plain_outputs, recorded, wrappers_of
from .code import COMMON, Code, write_code
from .compiling import Exporters, needs_of, only_target
from .custom_passes import CustomPasses
from .edited import digests_of
from .errors import ArtifactError, PackageError
from .package import device_facts

DynamicShapes = Literal["from_example_inputs", "from_tracing_context", "from_graph"]


def standalone_compile(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    dynamic_shapes: DynamicShapes = "from_example_inputs",
    options: Mapping[str, Any] | None = None,
    aot: bool = False,
    passes: Sequence[Any] = (),
    plugins: Plugins | None = None,
) -> Artifact:
    """Compiles a graph without dynamo. Returns what runs the graph, with `save(path)` and `serialize()`.

    gm: a graph of ATen ops or of torch's functions, with flat inputs: a graph that dynamo or make_fx made, or a
        region of one. The graph is not changed; tensors that it holds become parts of the artifact.
    inputs: tensors, fake ones or real ones, and numbers, one for each placeholder.
    dynamic_shapes: which sizes may vary. "from_example_inputs": none; the inputs say all. "from_tracing_context":
        those that are symbols in the inputs, which are of the trace that is under way. "from_graph": those that are
        symbols in `meta["example_value"]` or `meta["val"]` of the graph's placeholders, which count before inputs.
    options: as `torch.compile(options=...)`; a mode is {"mode": ...}. CUDA graphs are not recorded.
    aot: also compile the backward where an input requires gradients; else the artifact records no gradients.
    passes: each is called with the functional `torch.fx.Graph`, which it edits in place, in this order, and has an
        identity, which is part of the graph's key: its method `uuid()`, or the first of a pair (identity, function).
    plugins: for tests, in place of the installed ones and of passes.

    Errors: ArtifactError for a graph or inputs that cannot be compiled so, and what compiling raises.
    """
    if not isinstance(gm, torch.fx.GraphModule):
        raise ArtifactError(f"{type(gm).__name__} is no torch.fx.GraphModule", todo="trace it: torch.export, make_fx")
    if dynamic_shapes not in get_args(DynamicShapes):
        raise ArtifactError(
            f"dynamic_shapes is {dynamic_shapes!r}", todo=f"one of {', '.join(get_args(DynamicShapes))}"
        )
    compiler = make_compiler(options, passes, plugins)
    flat = graph_inputs.flat_graph(gm)
    mode, examples = graph_inputs.examples_of(gm, inputs, dynamic_shapes)
    fakes = [*graph_inputs.fake_state(mode, flat), *examples]
    job = Job(flat, fakes, fakes, aot)
    with graph_inputs.tracing(mode), torch.set_grad_enabled(aot):
        return starting_over(job.compiled, compiler).artifact()


def make_compiler(
    options: Mapping[str, Any] | None, passes: Sequence[Any] = (), plugins: Plugins | None = None
) -> pipeline.Compiler:
    """Returns a compiler for these options and passes that records no CUDA graphs."""
    given = {**(options or {}), "cuda_graphs": False}
    mode = given.pop("mode", None)
    if passes and plugins is None:
        settings, extra = make_plugin_settings(given), (("standalone_passes", CustomPasses(passes)),)
        known: dict[str, Any] = {"on_plugin_error": settings.on_error, "seconds": settings.seconds}
        plugins = make_plugins(builtin_plugins(), extra=extra, disable=settings.disable, **known)
    return pipeline.make_compiler(None, {**given, **({} if mode is None else {"mode": mode})}, plugins)


@dataclass
class Job:
    """One graph on its way to an artifact. flat: with its tensors as first inputs. examples: all its inputs, fake or
    real. fakes: the same, with symbols for sizes that may vary. autograd: may the artifact record gradients? checked:
    are the inputs of calls compared with these?"""

    flat: graph_inputs.FlatGraph
    examples: Sequence[Any]
    fakes: Sequence[Any]
    autograd: bool
    checked: bool = True
    graphs: dict[str, tuple[Graph, Any]] = field(default_factory=dict)
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    run: Callable[..., Any] = tuple
    compiler: Any = None
    env: Any = None
    call: Mapping[str, Any] = field(default_factory=dict)

    def compiled(self, compiler: pipeline.Compiler) -> Job:
        """Returns the job done by this compiler: `run` runs the graph."""
        self.compiler = compiler
        self.graphs.clear()
        self.entries.clear()

        def compile_one(graph: Graph) -> Any:
            made = pipeline.compile_graph(graph, compiler)
            self.graphs[graph.kind] = (graph, made)
            # By its key AOTAutograd's record names the graph.
            return replace(made, key=graph.kind) if isinstance(made, CompiledGraph) else made

        store = GraphStore("", lambda key, name: None, recording=lambda: recorded(self.entries))
        self.env = torch_api.shape_env_of(self.fakes)
        known = torch_api.guard_count(self.env)
        compiler.check_whole()
        with compiler.watched("") as watchers:
            own, seen = replace(compiler, watchers=watchers), not self.checked
            freezing = compiler.options.freezing
            self.run = capture(self.flat.module, self.examples, compile_one, own, freezing, store, seen_by_modes=seen)
        self.call = self._call(torch_api.guards_since(self.env, known))
        return self

    def artifact(self) -> Artifact:
        """Returns the artifact for this process."""
        state, run = list(self.flat.state.values()), self.run
        return Artifact(lambda *args: run(*state, *args), self.call, self.serialized)

    def _call(self, guards: Sequence[Any]) -> dict[str, Any]:
        """Returns what is known of a call, as `litz_aot.inputs` and `litz_aot.artifact` have it."""
        count = len(self.flat.state)
        autograd = self.autograd and "backward" in self.graphs
        pairs = zip(self.flat.names[count:], self.fakes[count:], strict=True)
        entry = self.entries[-1] if self.entries else None
        known = entry["runtime_metadata"].input_info if entry is not None else ()
        written = [at - count for at, info in enumerate(known) if info.mutates_data and at >= count]
        return {
            "checked": self.checked,
            "inputs": [graph_inputs.described(name, value, autograd) for name, value in pairs],
            "guards": graph_inputs.guard_texts(guards, self.env, self.fakes) if self.checked else [],
            "written": written if len(known) == len(self.fakes) else [],
            "out_spec": pytree.treespec_dumps(self.flat.out_spec),
            "state": list(self.flat.state),
            "autograd": self.autograd,
        }

    def serialized(self) -> bytes:
        """Returns the artifact as bytes. Errors: ArtifactError."""
        if not self.entries:
            problem = (
                "the graph runs by torch's own operations (litz has warned why), which no other process could load"
            )
            raise ArtifactError(problem, todo="run it in this process")
        entry = self.entries[-1]
        facts = facts_of(entry)
        missing = [kind for kind in self.graphs if kind not in facts]
        if missing or len(self.entries) > 1:
            problem = (
                f"the {', '.join(missing) or 'whole'} graph depends on where its inputs lie in memory, or runs eagerly"
            )
            raise ArtifactError(problem, todo="give it inputs that share no memory; LITZ_LOG=graph_cache says more")
        folder = Path(tempfile.mkdtemp(prefix="litz-"))
        try:
            return self._packed(facts, folder)
        except (FunctionPlaceError, PackageError) as error:
            raise ArtifactError(error.problem, todo=error.todo or "run it in this process") from error
        except ValueError as error:
            raise ArtifactError(f"what AOTAutograd puts around it is no data: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _packed(self, facts: Mapping[str, str], folder: Path) -> bytes:
        compiler = self.compiler
        exporters, entry = Exporters(compiler), self.entries[-1]
        outputs, graphs = plain_outputs(entry), {}
        for kind, (graph, made) in self.graphs.items():
            state = {} if kind == "backward" else dict(self.flat.state)
            graphs[kind] = _write_graph(graph, made, state, exporters, folder / kind)
        target = only_target([device for _, made in self.graphs.values() for device in _devices(made)], compiler)
        exporter = exporters.of(torch.device(target.type))
        launched = {
            name: (torch.device(kernel.device), kernel.source)
            for _, made in self.graphs.values()
            for name, kernel in made.code.entry.kernels.items()
        }
        deciders = compiler.plugins.deciders()
        packages = {str(source.target).partition(":")[0].partition(".")[0] for source in deciders if source.dist}
        spec = {
            "format": FORMAT,
            "version": VERSION,
            "torch": str(torch.__version__),
            "exporter": exporter.module,
            "device": device_facts(target, exporter.module),
            "needs": needs_of(list(launched.values()), target, exporters),
            "sources": digests_of(["litz", "litz_plugins", "litz_aot", *sorted(packages)]),
            "graphs": graphs,
            "call": {
                **self.call,
                "outputs": outputs,
                "facts": dict(facts),
                "wrappers": None if outputs is not None else wrappers_of(entry),
            },
        }
        return container.pack({MANIFEST: json.dumps(spec).encode(), **container.read(folder)})


def _devices(made: CompiledGraph) -> list[torch.device]:
    """The devices that a graph's kernels run on."""
    return [torch.device(kernel.device) for kernel in made.code.entry.kernels.values()]


def _write_graph(
    graph: Graph, made: CompiledGraph, state: Mapping[str, torch.Tensor], exporters: Exporters, folder: Path
) -> dict[str, Any]:
    """Writes a graph's code into a folder; returns its data for the artifact."""
    entry, compiler = made.code.entry, exporters.compiler
    devices = {name: torch.device(kernel.device) for name, kernel in entry.kernels.items()}

    def pack(source: KernelSource, into: Path, common: Path) -> tuple[Exporter, Mapping[str, Any]]:
        device = devices[source.name]
        exporter = exporters.of(device, source)
        context = CodegenContext(compiler.options, compiler.target_of(device), graph, compiler.cache)
        with compiler.plugins.blaming(exporter.plugin, f"pack of {exporter.module}", node=source.name):
            return exporter, import_module(exporter.module).pack(source, context, into, common)

    sources = {name: kernel.source for name, kernel in entry.kernels.items()}
    code = Code(entry.wrapper, entry.objects, sources, state)
    return {**write_code(code, folder, folder.parent / COMMON, pack), "overwritten": list(entry.overwritten)}


__all__ = ["AGAIN", "DynamicShapes", "standalone_compile"]
