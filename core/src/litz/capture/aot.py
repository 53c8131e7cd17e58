"""From a dynamo graph to a callable, through AOTAutograd.

In: the GraphModule that dynamo hands to a backend, and its example inputs. Each graph that AOTAutograd makes of it (one
for inference, or a forward and, on the first call of backward, a backward) becomes a `Graph`, goes through the graph
passes, and is handed to `compile_graph`. Out: the callable that dynamo runs, with AOTAutograd's wrappers around the
compiled graphs: they handle aliases of inputs, duplicate inputs, subclasses, and autograd itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from litz.capture import torch_api
from litz.capture.aliasing import beginning_as_traced, left_to_torch, reads_what_it_writes, respecting, storages_shared
from litz.capture.backward_inputs import SavedTensorHooks, as_traced, traced_inputs
from litz.capture.earlier import EarlierStages
from litz.capture.graph import Graph, Kind, make_graph, saved_names, saved_positions
from litz.capture.kept import Facts, GraphStore
from litz.capture.provenance import named_inputs, origins
from litz.origins.operations import Origin

Compiled = Callable[[list[Any]], Sequence[Any]]
_log = logging.getLogger("litz.graph_cache")


def compile_with_aot(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compile_graph: Callable[[Graph], Compiled],
    decompositions: Mapping[OpOverload, Callable[..., Any]],
    graph_passes: Callable[[Graph], Graph] = lambda graph: graph,
    freezing: bool = False,
    eager_random: bool = False,
    store: GraphStore | None = None,
    earlier: Callable[[str], EarlierStages] | None = None,
    seen_by_modes: bool = False,
) -> Callable[..., Any]:
    """Compile what dynamo captured.

    compile_graph: called once for each Graph, outside of any tracing mode, with gradients and autocast off. Its result
        is a boxed callable, from one list, which it may clear, to one value per graph output. If the callable has an
        attribute `output_strides` (per output a tuple of ints, or None for "as traced"), the backward is compiled for
        saved tensors of those strides; only outputs that are not in `visible_outputs` may differ from the trace.
    decompositions: see `decompositions.decompositions`.
    graph_passes: Graph to Graph, run before compile_graph; the identity by default.
    freezing: tell inference graphs what their parameters and buffers hold (`Graph.frozen_values`).
    eager_random: trace the random ops that eager calls; `decompositions` must keep them whole
        (`decompositions.drawn_in_eager`).
    store: where compiled graphs are kept for other processes; None for nowhere. With it AOTAutograd's cache is asked
        first, and neither traces nor calls `compile_graph` for what it and the store have.
    earlier: called with the label of what dynamo captured ("graph0"), gives the stages in front of the graphs; no
        passes and torch's partitioner without it.
    seen_by_modes: run what dynamo captured, by torch's own operations, where the user calls it with fake tensors or
        under a dispatch mode (`torch_api.seen_by_modes`); nothing is compiled for fake tensors.

    Returns a callable with positional inputs and a sequence of outputs, or what `gm` returns where that is no flat
    tuple (dynamo's graphs return one, those of make_fx need not). An exception from the passes or compile_graph keeps
    its type and gets a note that names the graph and its kind; one from compiling the backward is raised where
    backward() is called, as that is when it is compiled (earlier where sizes are dynamic, and then only logged by
    AOTAutograd, and raised again if backward() is called).
    """
    again = partial(
        compile_with_aot,
        compile_graph=compile_graph,
        decompositions=decompositions,
        graph_passes=graph_passes,
        freezing=freezing,
        eager_random=eager_random,
        store=store,
        earlier=earlier,
        seen_by_modes=seen_by_modes,
    )
    if any(isinstance(value, (list, tuple, dict)) for value in example_inputs):
        return torch_api.flatten_inputs(gm, example_inputs, again)
    if isinstance(gm, torch.fx.GraphModule) and not torch_api.returns_flat_tuple(gm):
        return torch_api.flatten_outputs(gm, lambda flat: again(flat, example_inputs))
    if seen_by_modes and any(map(torch_api.is_users_trace, example_inputs)):
        return gm
    whole = isinstance(gm, torch.fx.GraphModule)  # compiled autograd hands over a wrapper
    if whole and (name := reads_what_it_writes(gm.graph)):
        torch_api.inline_regions(gm)  # torch has a region's gradient while a graph is traced only
        return left_to_torch(gm, f"{name} reads a part of the memory that it writes")

    job = _Job(torch_api.compile_label(), compile_graph, graph_passes, count=len(example_inputs))
    job.user_names = torch_api.placeholder_names(gm)
    job.program = "" if store is None else store.program
    stages = EarlierStages() if earlier is None else earlier(job.label)
    job.earlier = stages.log
    if whole:
        torch_api.inline_regions(gm, stages.keeps)
        job.messages = tuple(torch_api.assertion_messages(gm))
        job.unclaimed = tuple(torch_api.unclaimed(gm))
        if freezing:
            known = zip(job.user_names, _names(gm), strict=True)
            job.values, job.names = tuple(example_inputs), tuple(name or given for name, given in known)
    # Dynamo itself keeps out of the callable returned here, and of all it calls. The backward is called by the
    # autograd engine, possibly in a frame that dynamo traces, and is compiled there too: both have to be guarded.
    backward = torch_api.disable_dynamo(job.backward, "litz compiles the backward graph")
    recording = None if store is None else store.recording
    reason = "nowhere to look" if store is None or freezing or recording else torch_api.why_not_kept(gm)
    if reason:
        _log.info("%s is traced, because: %s", job.label, reason)
    # The rules of ops, AOTAutograd's settings and what asks its cache are one for the process, and differ in here.
    with torch_api.compile_lock, contextlib.ExitStack() as stack:
        trace_instead = stack.enter_context(torch_api.traced_instead(gm)) if whole else None

        def before_trace() -> None:
            from litz.capture.decompositions import fake_rules  # here: takes long, and a graph that is kept needs none

            stack.enter_context(torch_api.faked_by(fake_rules(decompositions)))
            if trace_instead is not None:  # what compiled autograd hands over is no graph, and has no traced passes
                _pass_traced(gm, job, stages, trace_instead)

        if store is None or reason:
            job.kept = recording is not None
            stack.enter_context(recording() if recording else contextlib.nullcontext())
            before_trace()
        else:
            job.shared = storages_shared(example_inputs)
            job.kept = True
            env = torch_api.current_shape_env()
            job.left_out = partial(torch_api.guards_left_out, env, torch_api.guard_count(env), example_inputs)
            setting = f"{store.setting} {eager_random} {job.shared}"
            stack.enter_context(torch_api.found_by(gm, setting, partial(job.load, store), store.trust, before_trace))
        try:
            compiled = torch_api.aot_compile(
                gm,
                example_inputs,
                forward=job.forward,
                backward=backward,
                inference=job.inference,
                decompositions=decompositions,
                partition=partial(stages.halves, job.label),
                eager_random=eager_random,
                kept=job.kept,
            )
        except RuntimeError as error:
            if not any(words in str(error) for words in ("is non-compositional", "as_strided_scatter: sizes")):
                raise
            return left_to_torch(gm, "it writes a view of what as_strided gives")
    if job.bits:
        compiled = torch_api.with_lazy_bits(compiled, job.bits)
    if job.written is None and job.rebuilt:
        return left_to_torch(gm)
    fakes = torch_api.as_captured(gm, example_inputs)
    if job.counts_from_storage and job.written is not None:
        compiled = beginning_as_traced(compiled, gm, example_inputs, job.written, _names(gm), fakes)
    if job.written is None or job.written:
        compiled = respecting(compiled, gm, example_inputs, job.written, _names(gm), fakes)
    return torch_api.seen_by_modes(compiled, gm) if seen_by_modes else compiled


def _pass_traced(
    gm: torch.fx.GraphModule, job: _Job, stages: EarlierStages, trace_instead: Callable[..., None]
) -> None:
    """Has AOTAutograd trace what the traced passes make of a graph and of the regions that it calls."""
    module = stages.traced(f"{job.label}_traced", gm)
    regions = {name: body for name, (body, _) in torch_api.region_calls(gm).items()}
    trace_instead(module, {name: stages.traced(f"{job.label}_traced_{name}", regions[name]) for name in regions})


@dataclass
class _Job:
    """The compilers that AOTAutograd calls for one dynamo graph, and what the backward must know of the forward."""

    label: str
    compile_graph: Callable[[Graph], Compiled]
    graph_passes: Callable[[Graph], Graph]
    values: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    user_names: tuple[str, ...] = ()
    """The user's names for dynamo's inputs."""
    program: str = ""
    """The digest of the program's names and lines."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """The origins of the forward's nodes, by name. The backward's inputs have the names of what the forward saved."""
    messages: tuple[tuple[Any, str], ...] = ()
    unclaimed: tuple[Any, ...] = ()
    earlier: Any = None
    """The notes of the stages in front of the graphs."""
    count: int = 0
    written: frozenset[int] | None = frozenset()
    """Positions of dynamo's inputs that are written, None where nobody knows which."""
    rebuilt: frozenset[int] = frozenset()
    """Positions of outputs that AOTAutograd makes again as views of inputs."""
    bits: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    """The conjugate and negative bits of outputs, as `torch_api.lazy_bits` returns them."""
    counts_from_storage: bool = False
    """Does the program name an offset from the storage's begin (`torch_api.counts_from_storage`)? Where inputs were put
    together, `respecting` looks at all of the storage."""
    saved: dict[str, frozenset[str]] = field(default_factory=dict)
    """The forward's `saved_names`."""
    hooks: SavedTensorHooks = field(default_factory=SavedTensorHooks)
    kept: bool = False
    """True if other processes are to find the compiled graphs."""
    shared: tuple[Any, ...] = ()
    """Dynamo's inputs that lie in one storage."""
    left_out: Callable[[], list[Any]] = list
    """The guards of this compile that torch's cache would not check (`torch_api.guards_left_out`)."""

    @property
    def why_not_kept(self) -> str:
        """Returns the part of the trace that torch's cache knows nothing of; '' where it knows all."""
        if self.written is None or (self.written and self.shared) or self.counts_from_storage:
            return "where its inputs lie in memory is part of what was traced"
        return next((f"torch's cache would not check {guard}" for guard in self.left_out()), "")

    def inference(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        self._look_at(module)
        compiled = self._compile(module, example_inputs, "inference", static_inputs=torch_api.static_positions())
        return self._keep(partial(compiled) if self.kept else compiled, compiled, self._facts("inference"))

    def _look_at(self, module: torch.fx.GraphModule) -> None:
        """Note what AOTAutograd knows only while it has the forward or inference graph compiled."""
        self.written, self.rebuilt = torch_api.written_inputs(self.count), torch_api.rebuilt_outputs()
        self.bits, self.counts_from_storage = torch_api.lazy_bits(module), torch_api.counts_from_storage(module)

    def forward(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        torch_api.donate_nothing()
        self._look_at(module)
        static = torch_api.static_positions()
        total = len(module.graph.output_node().args[0])  # type: ignore[arg-type]
        visible = frozenset(range(torch_api.user_output_count(total)))
        self.saved = saved_names(module, static, visible)
        self.origins = origins(module)
        compiled = self._compile(module, example_inputs, "forward", visible, static_inputs=static)
        strides = getattr(compiled, "output_strides", None)
        if strides is not None:
            torch_api.report_output_strides(strides)
            # What comes in other strides is a copy, which lies somewhere else on each call.
            outputs = zip(module.graph.output_node().args[0], strides, strict=True)  # type: ignore[arg-type]
            moved = {item.name for item, changed in outputs if changed is not None and isinstance(item, torch.fx.Node)}
            self.saved["static_inputs"] -= moved
        return self._keep(self.hooks.watching(compiled), compiled, self._facts("forward"))

    def backward(self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        known = saved_positions(module, self.saved)
        compiled = self._compile(module, example_inputs, "backward", **known)
        made = known.get("made_inputs", frozenset())
        inputs = traced_inputs(module.graph.find_nodes(op="placeholder"), example_inputs, made)
        guarded = torch_api.disable_dynamo(as_traced(compiled, inputs, self.hooks), "litz compiled this backward graph")
        return self._keep(guarded, compiled, Facts("backward", inputs=inputs))

    def _facts(self, kind: Kind) -> Facts | None:
        """Returns the facts of a forward or inference graph; None where other processes cannot use the graph."""
        reason = self.why_not_kept
        if reason or self.written is None:
            _log.info("%s is not kept for processes that do not trace, because %s", self.label, reason)
            return None
        return Facts(kind, written=self.written, bits=self.bits)

    def _keep(self, run: Callable[..., Any], compiled: Compiled, facts: Facts | None) -> Compiled:
        """`run`, which calls `compiled`; for other processes too where the graph is kept."""
        key = getattr(compiled, "key", "")
        if self.kept and key and facts is not None:
            text = replace(facts, unwatched=getattr(compiled, "is_unwatched", False)).as_text()
            if text is not None:
                torch_api.keep_as(run, key, text)
        return _boxed(run)

    def load(self, store: GraphStore, key: str, text: str) -> Compiled | None:
        """A graph that another process compiled and kept with these facts; None where it cannot be had."""
        facts = Facts.from_text(text)
        compiled = None if facts is None else store.load(key, f"{self.label}_{facts.kind}")
        if facts is None or compiled is None:
            return None
        if facts.unwatched:
            compiled = torch_api.unwatched(compiled)
        if facts.kind == "backward":
            return None if facts.inputs is None else _boxed(as_traced(compiled, facts.inputs, self.hooks))
        self.written, self.bits = facts.written, dict(facts.bits or {})
        return _boxed(self.hooks.watching(compiled) if facts.kind == "forward" else partial(compiled))

    def _compile(
        self,
        module: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        kind: Kind,
        visible: frozenset[int] | None = None,
        **positions: frozenset[int],
    ) -> Compiled:
        name = f"{self.label}_{kind}"
        values = (value for node in module.graph.nodes for value in tree_leaves(node.meta.get("val")))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if any(value.layout != torch.strided for value in tensors):
            sparse = left_to_torch(module, f"{name} has sparse tensors", "keep these out of compiled code")
            return _boxed(lambda arguments: sparse(*arguments))
        try:
            with torch_api.real_mode():
                saved = self.origins if kind == "backward" else None
                graph = make_graph(
                    name,
                    module,
                    kind,
                    visible_outputs=visible,
                    rebuilt_outputs=frozenset() if kind == "backward" else self.rebuilt,
                    example_inputs=example_inputs,
                    messages=self.messages,
                    unclaimed=self.unclaimed,
                    earlier=None if kind == "backward" else self.earlier,
                    provenance=replace(named_inputs(module, self.user_names, saved), program=self.program),
                    **positions,
                )
                if kind == "inference":
                    graph = self._frozen(graph)
                compiled = _boxed(self.compile_graph(self.graph_passes(graph)))
                return torch_api.unwatched(compiled) if any(map(torch.is_complex, tensors)) else compiled
        except Exception as error:
            if not torch_api.is_restart(error):
                error.add_note(f"litz was compiling {name} (the {kind} graph)")
            raise

    def _frozen(self, graph: Graph) -> Graph:
        """Returns the graph with the values of parameters and buffers that it does not write, where dynamo gave
        them."""
        inputs = graph.placeholders
        if len(self.values) != len(inputs):
            return graph  # AOTAutograd took inputs apart or together: who is who is not known
        found: dict[int, torch.Tensor] = {}
        for at in sorted(graph.static_inputs - graph.mutated_inputs):
            value, fake = self.values[at], inputs[at].meta.get("val")
            if isinstance(value, torch.Tensor) and isinstance(fake, torch.Tensor) and not torch_api.is_fake(value):
                if tuple(value.shape) == tuple(fake.shape) and value.dtype == fake.dtype:
                    found[at] = value
        return replace(graph, frozen_values=found, input_names=self.names)


def _names(gm: Any) -> tuple[str, ...]:
    """Dynamo's names of the inputs; none where compiled autograd hands over a wrapper."""
    if not isinstance(gm, torch.fx.GraphModule):
        return ()
    return tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))


def _boxed(function: Callable[..., Any]) -> Compiled:
    """`function` with AOTAutograd's mark for "takes one list"; wrapped only if it cannot be marked."""
    if getattr(function, "_boxed_call", False):
        return function
    try:
        function._boxed_call = True  # type: ignore[attr-defined]
        return function
    except AttributeError:  # a bound method, or an object with __slots__

        def call(arguments: list[Any]) -> Sequence[Any]:
            return function(arguments)

        call._boxed_call = True  # type: ignore[attr-defined]
        call.output_strides = getattr(function, "output_strides", None)  # type: ignore[attr-defined]
        return call
