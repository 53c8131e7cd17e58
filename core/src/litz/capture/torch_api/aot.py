"""AOTAutograd: tracing, and what its context says about a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._ops import OpOverload

# (graph module, fake inputs) -> boxed callable. AOTAutograd's own type for it has moved between versions.
Compiler = Callable[..., Any]


def aot_compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> Callable[..., Any]:
    """Trace `gm` to functional ATen, split forward from backward by min-cut, and hand each graph to its compiler.

    The compilers get an FX graph and its fake inputs, and return a boxed callable (one list in, a sequence out).
    Returns a callable with dynamo's convention: positional inputs in, a sequence of outputs out. Whatever the
    compilers raise comes through unchanged.
    """
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    # DDP's graph splitter looks at this count to know that the first call returns the fake outputs it asked for.
    counters["aot_autograd"]["total"] += 1
    with _aot_config():
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=dict(decompositions),
            # Mutations of inputs arrive as trailing aten.copy_ nodes, so that litz can fuse the write.
            keep_inference_input_mutations=True,
        )


def _aot_config() -> contextlib.AbstractContextManager[Any]:
    """AOTAutograd's settings for a litz compile; the user's settings are back when it ends."""
    import torch._functorch.config as config

    wanted = {
        # AOTAutograd's own disk cache stores Inductor's artifacts; litz has its own cache.
        "enable_autograd_cache": False,
        "enable_remote_autograd_cache": False,
        "force_autograd_cache": False,
        # Donated buffers make backward(retain_graph=True) an error that eager does not raise.
        "donated_buffer": False,
        # Random ops stay ATen random ops; litz draws from the device's generator itself.
        "functionalize_rng_ops": False,
        "selective_decompose": False,
    }
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})


def flatten_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_flat: Callable[[Any, Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile a graph with lists or dicts among its inputs (compiled autograd passes one) through a flat twin."""
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, example_inputs, compile_flat)


def forward_metadata() -> Any | None:
    """AOTAutograd's metadata of the graph that is being compiled (a ViewAndMutationMeta), or None outside of it."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def static_positions() -> frozenset[int]:
    """Placeholder positions of the forward or inference graph that hold parameters and buffers (dynamo marks them)."""
    metadata = forward_metadata()
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def user_output_count(total: int) -> int:
    """How many leading outputs of the forward graph the user's code can see; the rest is saved for the backward."""
    metadata = forward_metadata()
    if metadata is None:
        return total
    tokens = len(getattr(metadata, "tokens", None) or ())
    return min(total, tokens + metadata.num_forward_returns)


def written_inputs(count: int) -> frozenset[int] | None:
    """Which of `count` inputs the graph that is being compiled writes, in the graph itself or after it; None where it
    writes some and AOTAutograd has put inputs together or taken them apart, so that their positions are others."""
    metadata = forward_metadata()
    if metadata is None:
        return frozenset()
    found = frozenset(at for at, info in enumerate(metadata.input_info) if info.mutates_data)
    return found if not found or len(metadata.input_info) == count else None


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether a backward's placeholder is a gradient that is handed to backward(), by the partitioner's names."""
    return "tangents" in str(node.target)


def saved_tensor_hooks_active() -> bool:
    """Whether what autograd saves now goes through `torch.autograd.graph.saved_tensors_hooks`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def overlapping(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two of these tensors of one storage may have memory in common, as AOTAutograd sees it."""
    from torch._C._dynamo.guards import compute_overlapping_tensors

    numbers = (number for tensor in tensors for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
    symbolic = any(isinstance(number, torch.SymInt) for number in numbers)
    return bool(compute_overlapping_tensors(list(tensors), symbolic=symbolic))


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that wraps others, which AOTAutograd takes out of it."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(tensor)


def rebuilt_outputs() -> frozenset[int]:
    """Output positions of the forward or inference graph that AOTAutograd rebuilds as views of inputs: of what the
    graph returns there only sizes, strides and storage offset count. Empty where it handles tensor subclasses."""
    metadata = forward_metadata()
    if metadata is None:
        return frozenset()
    for made in getattr(metadata, "subclass_fw_graph_out_meta", None) or ():
        if hasattr(made, "original_subclass"):
            return frozenset()
    first = len(getattr(metadata, "tokens", None) or ()) + metadata.num_mutated_inp_runtime_indices
    of_inputs = ("alias_of_input", "is_input")
    return frozenset(
        first + number for number, info in enumerate(metadata.output_info) if info.output_type.name in of_inputs
    )


def reset_with_dynamo(backend: Any) -> None:
    """Have the next `torch._dynamo.reset()` call `backend.reset()`. By itself dynamo does so once for each call of
    torch.compile, and not again for what is compiled after a reset."""
    from torch._dynamo import eval_frame

    known = getattr(eval_frame, "cached_backends", None)
    if isinstance(known, dict):
        known.setdefault(id(backend), backend)


def donate_nothing() -> None:
    """Tell AOTAutograd that the backward takes over no memory of saved tensors, so that it may run twice. Its setting
    says so as well, but where the backward is compiled early (dynamic sizes) 2.13 takes "not said" for "some"."""
    metadata = forward_metadata()
    if metadata is not None and getattr(metadata, "bw_donated_idxs", 0) is None:
        metadata.bw_donated_idxs = []


def report_output_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd which strides the compiled forward's outputs have (None: as traced), so that the backward is
    traced with them. Does nothing outside of a forward compile."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()
        context.output_strides.extend(strides)
