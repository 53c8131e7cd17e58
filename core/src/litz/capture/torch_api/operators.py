"""Operators: decompositions, what they write, alias and draw, process groups by name."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._prims_common import canonicalize_dims
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from .fake import fake_mode_around, hint_or_none, is_fake
from .random import is_random


def decomposition_registry() -> dict[OpOverload, Callable[..., Any]]:
    """Returns a copy of torch's own table of decompositions, by op."""
    from torch._decomp import decomposition_table, decompositions

    table = {op: rule for op, rule in decomposition_table.items() if isinstance(op, OpOverload)}
    norm, aten = torch.ops.aten.linalg_vector_norm.default, torch.ops.aten
    if not hasattr(decompositions, "_softmax_unbacked_safe_amax"):  # before torch 2.13
        for op in (aten._softmax.default, aten._log_softmax.default):
            table[op] = partial(_softmax_of_known_rows, table[op])
    return table | {norm: partial(norm_of_dims_from_the_front, table[norm])}


def _softmax_of_known_rows(rule: Callable[..., Any], x: torch.Tensor, dim: int, *args: Any) -> Any:
    """`rule`, that of a softmax, asserts that a size which data decide is not 0; the op itself takes 0."""
    return rule(x, dim, *args) if not x.dim() or hint_or_none(x.shape[dim]) is not None else NotImplemented


def norm_of_dims_from_the_front(
    rule: Callable[..., Any], x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> torch.Tensor:
    """`rule`, that of `linalg_vector_norm`, before torch 2.13 knows no dimension of one element that is counted from
    the end (the dimension stays in the result), and gives one element the type that sums are computed in."""
    if dim is not None:
        dim = list(canonicalize_dims(x.ndim, [dim] if isinstance(dim, int) else list(dim)))
    return rule(x, ord, dim, keepdim, dtype=dtype).to((dtype or x.dtype).to_real())  # type: ignore[no-any-return]


def core_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Returns torch's decompositions into the core ATen op set, by overload."""
    from torch._decomp import core_aten_decompositions

    return {op: rule for op, rule in core_aten_decompositions().items() if isinstance(op, OpOverload)}


def whole_where_undecided(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule`, a decomposition, that leaves its op whole where it would have to compare sizes that only data decide. The
    op itself may well do without (`repeat`)."""

    def run(*args: Any, **kwargs: Any) -> Any:
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # here: most are never called

        try:
            return rule(*args, **kwargs)
        except GuardOnDataDependentSymNode:
            return NotImplemented

    return run


def is_composite(op: Any) -> bool:
    """Returns whether torch itself computes `op` by other ops, on every device and with gradients."""
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def trace(
    function: Callable[..., Any], values: Sequence[Any], like: Any, table: Mapping[OpOverload, Callable[..., Any]]
) -> torch.fx.GraphModule | None:
    """The ops that `function` calls on fake tensors and sizes, those in `table` in pieces; None where it would have to
    compare sizes that only data decide. values: some may be one tensor, and tracing tells tensors by identity. like:
    the mode of this fake tensor is used where no value has one."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with fake_mode_around([*values, like]):
        own = [v.detach() if is_fake(v) and any(v is w for w in values[:n]) else v for n, v in enumerate(values)]
        traced = whole_where_undecided(make_fx(function, decomposition_table=table))(*own)
    return None if traced is NotImplemented else traced


def fake_result(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None) -> Any:
    """Returns what `op` itself returns for fake tensors, whatever is being traced: nothing is recorded, and no op is
    taken apart. NotImplemented where nobody can ask: an argument is no fake tensor, the op writes, or what it returns
    depends on data. like: the mode of this fake tensor is used where no argument has one. Raises what the op does."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    data = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    tensors = [item for item in tree_leaves((args, dict(kwargs))) if isinstance(item, torch.Tensor)]
    if _is_mutable(op) or not data.isdisjoint(op.tags) or not all(map(is_fake, tensors)):
        return NotImplemented
    with disable_proxy_modes_tracing(), fake_mode_around([*tensors, *tree_leaves(like)]):
        return op(*args, **kwargs)


def memory_of(tensor: torch.Tensor) -> int:
    """Returns a number for the storage of a tensor that is alive; for tensors without a storage (sparse ones), a number
    for the tensor."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def share_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns whether two tensors lie in the same storage."""
    return memory_of(left) == memory_of(right)


def written_arguments(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """Returns the argument nodes whose storage the node's op writes, by the op's schema."""
    if not isinstance(node.target, OpOverload) or not _is_mutable(node.target):
        return ()
    given = (value for alias, value in _aliased(node) if alias.is_write)
    items = (item for value in given for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return tuple(item for item in items if isinstance(item, torch.fx.Node))


def _aliased(node: torch.fx.Node) -> Iterator[tuple[Any, Any]]:
    """(alias set, value) of each argument whose memory the op of `node` writes or returns, by its schema."""
    for position, name, alias in _alias_infos(node.target):  # type: ignore[arg-type]
        yield alias, node.args[position] if position < len(node.args) else node.kwargs.get(name)


@cache
def _alias_infos(op: OpOverload) -> tuple[tuple[int, str, Any], ...]:
    """(position, name, alias set) of the arguments whose memory an op writes or returns: asking a schema is slow."""
    arguments = enumerate(op._schema.arguments)
    return tuple((at, argument.name, argument.alias_info) for at, argument in arguments if argument.alias_info)


@cache
def _returns_alias(op: OpOverload) -> bool:
    """Returns whether a result of an op may share an argument's memory, by its schema or by what is known of it."""
    return any(result.alias_info is not None for result in op._schema.returns)


@cache
def _is_mutable(op: OpOverload) -> bool:
    return bool(op._schema.is_mutable)


@cache
def _is_wait(op: OpOverload) -> bool:
    return op in _UNANNOTATED_ALIASES or op.name().startswith("_c10d_functional::wait_tensor")


def aliased_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node whose storage the result of `node` shares (a view, a getitem of views, a wait); None if the
    result is fresh."""
    target = node.target
    if target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(target, OpOverload) or not (_is_wait(target) or _returns_alias(target)):
        return None
    value = node.args[0] if _is_wait(target) else next((value for _, value in _aliased(node)), None)
    return value if isinstance(value, torch.fx.Node) else None


def memory_owner(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the node that made the memory of the node's tensor; where an op has several fresh results, the getitem of
    the result."""
    while (base := aliased_argument(node)) is not None:
        if not isinstance(base.meta.get("val"), torch.Tensor) and aliased_argument(base) is None:
            break
        node = base
    return node


def memory_owners(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """Returns `memory_owner` of every node of a graph, given in order; one sweep, which walks no chain of views
    twice."""
    owners: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        base = aliased_argument(node)
        if base is None or (not isinstance(base.meta.get("val"), torch.Tensor) and aliased_argument(base) is None):
            owners[node] = node
        else:
            owners[node] = owners[base]
    return owners


def held_by_backward(module: torch.fx.GraphModule, visible: frozenset[int]) -> frozenset[str]:
    """Names of the outputs of a forward graph whose memory nobody but its backward holds: not in `visible` (positions),
    and sharing no storage with an input or a visible output."""
    outputs: Any = module.graph.output_node().args[0]
    seen = {memory_owner(item) for n, item in enumerate(outputs) if n in visible and isinstance(item, torch.fx.Node)}
    return frozenset(
        item.name
        for n, item in enumerate(outputs)
        if n not in visible and isinstance(item, torch.fx.Node)
        if (base := memory_owner(item)).op == "call_function" and base not in seen
    )


def alone_in_memory(module: torch.fx.GraphModule, names: frozenset[str]) -> frozenset[str]:
    """Returns those of the outputs `names` of a forward graph that share memory with no other output. Only results of
    torch's own ops count, as torch says reliably which results are fresh."""
    outputs = [item for item in module.graph.output_node().all_input_nodes if item.meta.get("val") is not None]
    shared, owners = owners_of_several(outputs), {item: memory_owner(item) for item in outputs if item.name in names}
    return frozenset(item.name for item, owner in owners.items() if owner not in shared and is_torchs(owner))


def owners_of_several(nodes: Iterable[torch.fx.Node]) -> frozenset[torch.fx.Node]:
    """Returns the nodes that made the memory which several of `nodes`, all different, share."""
    return frozenset(owner for owner, times in Counter(map(memory_owner, nodes)).items() if times > 1)


def is_torchs(node: torch.fx.Node) -> bool:
    """Returns whether a node is a result of one of torch's own ops."""
    if getattr(node.target, "__name__", "") == "getitem":
        return bool(node.all_input_nodes) and is_torchs(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and node.target.namespace in ("aten", "prims")


# Their schemas promise a fresh tensor, their kernels return a view.
_UNANNOTATED_ALIASES = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default})


def is_collective(target: Any) -> bool:
    """Returns whether `target` talks to other ranks (the functional collectives and their wait)."""
    namespace = target.namespace if isinstance(target, OpOverload) else ""
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")


def elementwise_collectives() -> tuple[OpOverload, ...]:
    """Returns the collectives that take any strides and give a result like their first argument, or a list of such
    results; none where torch was built without torch.distributed."""
    names = ("all_reduce", "all_reduce_coalesced", "broadcast")
    found = (getattr(torch.ops._c10d_functional, name, None) for name in names)
    return tuple(packet.default for packet in found if packet is not None)


def group_ranks(name: str) -> tuple[int, ...]:
    """Returns the global ranks of the process group called `name`, in the group's order; () if there is no such
    group."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return ()
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        group = _resolve_process_group(name)  # type: ignore[arg-type]
    except (RuntimeError, ValueError, KeyError):
        return ()
    return tuple(dist.get_process_group_ranks(group))


def default_store() -> tuple[Any, int] | None:
    """(store of the default process group, this rank), through which ranks can tell each other things; None without a
    group, or in a fake one."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_backend() == "fake":
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store(), dist.get_rank()


def is_higher_order(target: Any) -> bool:
    """Returns whether `target` takes subgraphs or other ops (cond, while_loop, auto_functionalized, ...)."""
    return isinstance(target, HigherOrderOperator)


def is_pure(node: torch.fx.Node) -> bool:
    """Returns whether `node` computes a value and nothing else: unused it may be dropped, repeated it may be shared.

    Random ops are not pure: dropping one would shift what every later random op draws. Asserts, collectives, writes
    and higher-order ops are not either.
    """
    if node.op != "call_function":
        return node.op == "get_attr"
    target = node.target
    if is_random(target) or is_collective(target) or is_higher_order(target):
        return False
    return not (isinstance(target, OpOverload) and _is_mutable(target)) and not node.is_impure()


def copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns a module with nodes of its own, of the same names, that computes what `module` does. A node that is added
    later gets the name that it would get there."""
    graph, made = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), made.__getitem__)  # type: ignore[arg-type]
        made[node] = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made[node].meta = dict(node.meta)
    names, known = graph._graph_namespace, module.graph._graph_namespace
    names._used_names |= known._used_names
    names._base_count.update(known._base_count)
    twin = make_graph_module(module, graph, type(module).__name__)
    twin.meta = dict(module.meta)
    return twin


def make_graph_module(root: torch.nn.Module | dict[str, Any], graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule whose Python code is only generated if somebody runs or prints it. root: where its attributes are,
    a module or a mapping."""
    from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        return _make_graph_module(root, graph, class_name=name)


_UNINITIALIZED = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_permuted.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


def is_uninitialized(node: torch.fx.Node) -> bool:
    """Returns whether a tensor is all or a part of fresh memory that nothing was written to yet."""
    return memory_owner(node).target in _UNINITIALIZED
