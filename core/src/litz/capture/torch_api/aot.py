"""AOTAutograd: tracing, and what its context says about a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from .aot_cache import cache_settings
from .asserts import drop_settled, keeps_asserted_calls
from .random import partition_with_draws, random_as_in_eager
from .rules import rules_of_resampling, traced_by
from .scalars import numbers_kept_where_torch_has_no_tensor_op
from .settings import functorch_settings

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
    partition: Callable[..., Any],
    eager_random: bool = False,
    kept: bool = False,
) -> Callable[..., Any]:
    """Trace `gm` to functional ATen, split forward from backward, and hand each graph to its compiler.

    The compilers get an FX graph and its fake inputs, and return a boxed callable (one list in, a sequence out).
    partition: splits a joint graph, as AOTAutograd calls a partitioner.
    eager_random: keep the random ops that eager calls, each once, where eager calls it (`random_as_in_eager`).
    kept: ask AOTAutograd's disk cache first, and keep there what is compiled (`aot_cache.found_by`).
    Returns a callable with dynamo's convention: positional inputs in, a sequence of outputs out. Whatever the
    compilers raise comes through unchanged.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    # DDP's graph splitter looks at this count to know that the first call returns the fake outputs it asked for.
    counters["aot_autograd"]["total"] += 1
    apart = any(map(_differs_from_its_equals, gm.graph.nodes)) if hasattr(gm, "graph") else False
    drawn = random_as_in_eager() if eager_random else contextlib.nullcontext()
    numbers = numbers_kept_where_torch_has_no_tensor_op()
    resampling = traced_by(rules_of_resampling())
    with _aot_config(apart, kept), keeps_asserted_calls(gm), drawn, numbers, resampling:
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partition_with_draws(partition) if eager_random else partition,
            decompositions=decompositions,  # type: ignore[arg-type]  # or a mapping, which is made where it is read
            # Mutations of inputs arrive as trailing aten.copy_ nodes, so that litz can fuse the write.
            keep_inference_input_mutations=True,
        )


@contextlib.contextmanager
def traced_instead(gm: torch.fx.GraphModule) -> Iterator[Callable[..., None]]:
    """While this is entered, torch traces the module that the callable is handed in place of `gm`, whose code stays
    what it is, and the regions that it is handed by name. `gm` is as it was afterwards. To be called before the trace,
    and after AOTAutograd's cache was asked: the cache goes by `gm`."""
    drop_settled(gm)
    before, added, replaced = gm._graph, list[str](), dict[str, Any]()

    def instead(module: torch.fx.GraphModule, regions: Mapping[str, torch.fx.GraphModule]) -> None:
        for name, region in regions.items():
            replaced[name] = getattr(gm, name)
            region.meta.update(replaced[name].meta)
            setattr(gm, name, region)
        if module is gm:
            return
        for node in module.graph.find_nodes(op="get_attr"):
            name = str(node.target).partition(".")[0]
            if not hasattr(gm, name):
                setattr(gm, name, getattr(module, name))
                added.append(name)
        inputs = zip(before.find_nodes(op="placeholder"), module.graph.find_nodes(op="placeholder"), strict=True)
        for captured, node in inputs:  # dynamo says there where an input comes from
            for name in vars(captured).keys() - vars(node).keys():
                setattr(node, name, getattr(captured, name))
        gm._graph = module.graph  # not `gm.graph`, which makes code

    try:
        yield instead
    finally:
        gm._graph = before
        for name in added:
            delattr(gm, name)
        for name, region in replaced.items():
            setattr(gm, name, region)


def _differs_from_its_equals(node: torch.fx.Node) -> bool:
    """Says whether a call and its equal to Python are two: they find out sizes, or have zeros of two signs."""
    return bool(node.meta.get("unbacked_bindings")) or "-0.0" in map(repr, pytree.tree_leaves((node.args, node.kwargs)))


def _aot_config(apart: bool, kept: bool) -> contextlib.AbstractContextManager[Any]:
    """AOTAutograd's settings for a litz compile; the user's settings are back when it ends. apart: the partitioner must
    not make one of calls that are equal to Python."""
    wanted = {
        **cache_settings(kept),
        # Donated buffers make backward(retain_graph=True) an error that eager does not raise.
        "donated_buffer": False,
        # Random ops stay ATen random ops; litz draws from the device's generator itself.
        "functionalize_rng_ops": False,
        "selective_decompose": False,
        **({"cse": False} if apart else {}),
    }
    return functorch_settings(**wanted)


def flatten_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_flat: Callable[[Any, Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compiles a graph with lists or dicts among its inputs (compiled autograd passes one) through a twin with flat
    inputs, and returns a function that takes the inputs as they are."""
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, example_inputs, compile_flat)


def returns_flat_tuple(gm: torch.fx.GraphModule) -> bool:
    """Returns whether a graph returns a tuple or list without others in it. Dynamo's graphs do; make_fx's need not."""
    found = gm.graph.output_node().args[0]
    return isinstance(found, (tuple, list)) and not any(isinstance(item, (tuple, list, dict)) for item in found)


def flatten_outputs(
    gm: torch.fx.GraphModule, compile_flat: Callable[[torch.fx.GraphModule], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compiles a graph that returns one value, a dict or nested values through a twin that returns a flat tuple, and
    returns a function that gives the result its structure back."""
    flat = torch.fx.Graph()
    found, structure = pytree.tree_flatten(_plain(flat.graph_copy(gm.graph, {})))
    flat.output(tuple(found))
    compiled = compile_flat(torch.fx.GraphModule(gm, flat))

    def run(*args: Any) -> Any:
        return pytree.tree_unflatten(list(compiled(*args)), structure)

    return run


def _plain(value: Any) -> Any:
    """FX's immutable dicts and lists as Python's own, which a graph returns."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return pytree.tree_map(_plain, value, is_leaf=lambda item: item is not value) if isinstance(value, tuple) else value


def counts_from_storage(module: torch.fx.GraphModule) -> bool:
    """Returns whether the program of a traced graph names an offset for `as_strided`, which counts from the storage's
    begin. torch's rules for other ops call `as_strided` as well, with where the traced input began in the offset."""
    for node in module.graph.nodes:
        name, asked_for = str(node.target), str(node.meta.get("original_aten") or node.target)
        if name in _STRIDED and asked_for in _STRIDED and node.args[_STRIDED[name] :]:
            return True
    return False


_STRIDED = {"aten.as_strided.default": 3, "aten.as_strided_copy.default": 3, "aten.as_strided_scatter.default": 4}
"""The position of the offset among the arguments, by the op's name: `original_aten` is a copy of the op."""


def forward_metadata() -> Any | None:
    """Returns AOTAutograd's metadata (a ViewAndMutationMeta) of the graph that is being compiled; None outside of a
    compile."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def static_positions() -> frozenset[int]:
    """Returns the positions of the forward or inference graph's placeholders that hold parameters and buffers, which
    dynamo marks."""
    metadata = forward_metadata()
    return frozenset(metadata.static_input_indices or ()) if metadata is not None else frozenset()


def user_output_count(total: int) -> int:
    """Returns how many of the forward graph's `total` outputs, from the first on, the user's code can see; the others
    are saved for the backward."""
    metadata = forward_metadata()
    if metadata is None:
        return total
    return min(total, len(metadata.tokens) + metadata.num_forward_returns)


def written_inputs(count: int) -> frozenset[int] | None:
    """Returns which of `count` inputs the graph that is being compiled writes, in the graph or after it; None where it
    writes some and AOTAutograd has put inputs together or taken them apart, so that their positions are others."""
    metadata = forward_metadata()
    if metadata is None:
        return frozenset()
    found = frozenset(at for at, info in enumerate(metadata.input_info) if info.mutates_data)
    return found if not found or len(metadata.input_info) == count else None


def is_tangent(node: torch.fx.Node) -> bool:
    """Returns whether a backward's placeholder is a gradient handed to backward(), by the partitioner's names."""
    return "tangents" in str(node.target)


def saved_tensor_hooks_active() -> bool:
    """Returns whether what autograd saves now goes through `torch.autograd.graph.saved_tensors_hooks`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def overlapping(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns whether two of these tensors of one storage may have memory in common, as AOTAutograd sees it."""
    from torch._C._dynamo.guards import compute_overlapping_tensors

    numbers = (number for tensor in tensors for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
    symbolic = any(isinstance(number, torch.SymInt) for number in numbers)
    return bool(compute_overlapping_tensors(list(tensors), symbolic=symbolic))


def synthetic_base(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Describes what AOTAutograd puts in place of tensors of one storage of which some overlap: whether autograd knows
    the base, and the base's dtype, number of dimensions, sizes, strides and offset (each None where symbolic). Where
    only some are views of the base that autograd knows, which AOTAutograd refuses to trace, `("mixed",)`.
    """
    base = next((tensor._base for tensor in tensors if tensor._base is not None), None)
    if base is None:
        storage = tensors[0].untyped_storage()
        numbers: list[Any] = [storage.nbytes() // tensors[0].itemsize, 1, 0]
        return (False, tensors[0].dtype, 1, *map(_fixed, numbers))
    if any(tensor is not base and tensor._base is not base for tensor in tensors):
        return ("mixed",)
    numbers = [*base.shape, *base.stride(), base.storage_offset()]
    return (True, base.dtype, base.dim(), *map(_fixed, numbers))


def _fixed(number: Any) -> int | None:
    return number if isinstance(number, int) else None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is of a subclass that wraps others, which AOTAutograd takes out of it, or wrapped by a
    transform of `torch.func`. Neither has an address."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def unwatched(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, run outside of the dispatch mode in which AOTAutograd has the first call of a graph (from torch 2.13
    on, to look for aliases among the results of custom ops).

    A kernel of torch that calls other ops conjugates nothing under a dispatch mode: the first result of
    `torch.linalg.pinv` of a complex matrix would be another than eager's.
    """

    def call(arguments: list[Any]) -> Sequence[Any]:
        mode = _get_current_dispatch_mode()
        if type(mode).__name__ != "_AnalyzeCustomOpInputOutputMode":
            return compiled(arguments)  # type: ignore[no-any-return]
        with _pop_mode_temporarily():
            return compiled(arguments)  # type: ignore[no-any-return]

    call._boxed_call = True  # type: ignore[attr-defined]
    call.is_unwatched = True  # type: ignore[attr-defined]
    for name in ("output_strides", "key"):
        setattr(call, name, getattr(compiled, name, None))
    return call


def rebuilt_outputs() -> frozenset[int]:
    """Output positions of the forward or inference graph that AOTAutograd rebuilds as views of inputs: of what the
    graph returns there only sizes, strides and storage offset count. Empty where it handles tensor subclasses."""
    infos = _user_outputs()
    return frozenset(position for position, _, info in infos if info.output_type.name in ("alias_of_input", "is_input"))


def lazy_bits(module: torch.fx.GraphModule) -> dict[int, tuple[bool, bool]]:
    """Returns whether an output is lazily conjugated and lazily negated, by its number among what the user's code
    returns, for those that AOTAutograd makes again as views of complex tensors."""
    values = module.graph.output_node().args[0]
    found = {}
    for position, number, info in _user_outputs():
        value = getattr(values[position], "meta", {}).get("val")  # type: ignore[index]
        if info.output_type.name not in ("non_alias", "is_input") and isinstance(value, torch.Tensor):
            found[number] = (value.is_conj(), value.is_neg())
    return found if any(map(any, found.values())) else {}


def with_lazy_bits(compiled: Callable[..., Any], bits: Mapping[int, tuple[bool, bool]]) -> Callable[..., Any]:
    """`compiled`, with its outputs conjugated and negated as they were when traced: where sizes are symbolic
    AOTAutograd makes a view by sizes, strides and offset, which the bits are no part of (torch 2.11 to 2.13)."""

    def call(*args: Any) -> list[Any]:
        outputs = list(compiled(*args))
        for number, (conjugated, negated) in bits.items():
            if outputs[number].is_conj() != conjugated:
                outputs[number] = outputs[number].conj()
            if outputs[number].is_neg() != negated:
                outputs[number] = torch._neg_view(outputs[number])
        return outputs

    return call


def _user_outputs() -> list[tuple[int, int, Any]]:
    """(position in the forward or inference graph, number, AOTAutograd's account) of what the user's code returns; none
    where AOTAutograd handles tensor subclasses."""
    metadata = forward_metadata()
    if metadata is None:
        return []
    if any(hasattr(made, "original_subclass") for made in metadata.subclass_fw_graph_out_meta or ()):
        return []
    first = len(metadata.tokens) + metadata.num_mutated_inp_runtime_indices
    return [(first + number, number, info) for number, info in enumerate(metadata.output_info)]


def reset_with_dynamo(backend: Any) -> None:
    """Have the next `torch._dynamo.reset()` call `backend.reset()`. By itself dynamo does so once for each call of
    torch.compile, and not again for what is compiled after a reset."""
    from torch._dynamo import eval_frame

    eval_frame.cached_backends.setdefault(id(backend), backend)


def donate_nothing() -> None:
    """Tell AOTAutograd that the backward takes over no memory of saved tensors, so that it may run twice. Its setting
    says so as well, but where the backward is compiled early (dynamic sizes) 2.13 takes "not said" for "some"."""
    metadata = forward_metadata()
    if metadata is not None and metadata.bw_donated_idxs is None:
        metadata.bw_donated_idxs = []


def report_output_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd which strides the compiled forward's outputs have (None: as traced), so that the backward is
    traced with them. Does nothing outside of a forward compile."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()
        context.output_strides.extend(strides)
