"""The compiler's interface of vLLM's compile flow, answered by `litz.standalone_compile`.

vLLM splits a model at its attention ops, hands each piece over once for each range of sizes, keeps the handles in its
own cache folder, and records CUDA graphs itself. In: a piece. Out: a callable, and a handle: two strings, the second
the path of litz's artifact.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from vllm import envs
from vllm.compilation.compiler_interface import CompilerInterface

import litz
from litz_clients.bundle import packed
from litz_clients.identity import identity
from litz_clients.inductor import settings
from litz_clients.passes import GRAPH_PASSES, TRACED_PASS, passes_of, run_on
from litz_clients.same_graph import graph_key


class Piece:
    """One compiled piece: called with its inputs, it returns what the piece's graph returns.

    run: litz's artifact. one: whether the graph returns its output bare, and not in a tuple.
    """

    def __init__(self, run: Any, one: bool) -> None:
        self.run, self.one = run, one
        self._packed: bytes | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Runs the piece."""
        outputs = self.run(*inputs)
        return outputs[0] if self.one and isinstance(outputs, (list, tuple)) else outputs

    def serialize(self) -> bytes:
        """Returns the bytes that vLLM puts into its ahead-of-time artifact, for torch's loader."""
        if self._packed is None:  # equal layers are one piece
            self._packed = packed(self.run.serialize())
        return self._packed


class LitzCompiler(CompilerInterface):
    """litz as vLLM's compiler. vLLM makes one for each part of a model (backbone, drafter)."""

    name = "litz"

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._made: dict[Hashable, tuple[Piece, tuple[str, str] | None]] = {}
        self._loaded: dict[str, Any] = {}

    def initialize_cache(self, cache_dir: str, disable_cache: bool = False, prefix: str = "") -> None:
        """Takes the folder that vLLM keeps this part's artifacts in. litz's own cache stays where it is."""
        self._folder = None if disable_cache else Path(cache_dir)

    def compute_hash(self, vllm_config: Any) -> str:
        """Returns what a compile by litz depends on beside the model: versions, sources, plugins, options."""
        return identity()

    def compile(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: Mapping[str, Any],
        compile_range: Any,
        key: str | None = None,
    ) -> tuple[Piece, tuple[str, str] | None]:
        """Compiles a piece for one size, whose inputs are concrete fake tensors, or for a range of sizes, where the
        placeholders say what is symbolic. Returns the callable, and the handle for `load`.

        The handle is None where vLLM packs the callables into one artifact of its own, or caches nothing. Errors:
        LitzError.
        """
        config = dict(compiler_config or {})
        single = bool(compile_range.is_single_size())
        passes = passes_of(config, GRAPH_PASSES)
        same = self._same(graph, example_inputs, config, passes, compile_range)
        if same is not None and same in self._made:
            return self._made[same]

        graph = copy.deepcopy(graph)  # others compile the same piece for other ranges
        one = not isinstance(graph.graph.output_node().args[0], (list, tuple))
        if TRACED_PASS in config:
            run_on(graph, config[TRACED_PASS])
        with settings(config):
            run = litz.standalone_compile(
                graph,
                list(example_inputs),
                dynamic_shapes="from_example_inputs" if single else "from_graph",
                passes=passes,
            )
        handle = None
        if key is not None and self._folder is not None and not envs.VLLM_USE_MEGA_AOT_ARTIFACT:
            path = str(self._folder / key)
            run.save(path)
            handle = (key, path)
        made = Piece(run, one), handle
        if same is not None:
            self._made[same] = made
        return made

    def load(
        self, handle: tuple[str, str], graph: Any, example_inputs: Sequence[Any], graph_index: int, compile_range: Any
    ) -> Piece:
        """Returns the piece that `compile` saved; pieces of one handle are loaded once. Errors: LitzError where the
        artifact is damaged, or was made by another litz, torch or for another device."""
        name = handle[0]
        path = str(self._folder / name) if self._folder is not None else handle[1]  # the folder may have moved
        if path not in self._loaded:
            self._loaded[path] = litz.load(path)
        one = not isinstance(graph.graph.output_node().args[0], (list, tuple))
        return Piece(self._loaded[path], one)

    def _same(self, graph: Any, inputs: Any, config: Mapping[str, Any], passes: Any, compile_range: Any) -> Hashable:
        key = graph_key(graph, inputs)
        if key is None:
            return None
        identities = tuple(item.uuid() for item in passes)
        return key, identities, compile_range.start, compile_range.end
