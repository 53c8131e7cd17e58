"""The one module that touches private torch APIs: a new torch version is this file's work.

Small named functions over dynamo, AOTAutograd, ShapeEnv, fake tensors and the dispatcher. Written for torch 2.11 to
2.13; where they differ, the function says so. Nothing here imports `torch._inductor` (some of torch's own modules do).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch._dynamo.utils import counters
from torch._guards import CompileContext, TracingContext
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true

# (graph module, fake inputs) -> boxed callable. AOTAutograd's own type for it has moved between versions.
Compiler = Callable[..., Any]

# --- AOTAutograd ------------------------------------------------------------------------------------------------------


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


# --- dynamo -----------------------------------------------------------------------------------------------------------


def disable_dynamo(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """`function`, which dynamo neither traces nor looks into."""
    return torch._dynamo.disable(function, reason=reason)


def compile_label() -> str:
    """A name for the graph that dynamo is compiling: "graph3", or "graph3_1" for its first recompilation."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is None:
        return "graph"
    frame, again = getattr(compile_id, "frame_id", None), getattr(compile_id, "frame_compile_id", None)
    if frame is None:  # compiled autograd has its own numbering
        return f"graph_autograd{getattr(compile_id, 'compiled_autograd_id', 0) or 0}"
    return f"graph{frame}_{again}" if again else f"graph{frame}"


def is_restart(error: BaseException) -> bool:
    """Whether dynamo raised `error` to start its analysis over: not a failure, and to be passed on untouched."""
    from torch._dynamo.exc import RestartAnalysis, TensorifyScalarRestartAnalysis

    return isinstance(error, (RestartAnalysis, TensorifyScalarRestartAnalysis))


# --- fake tensors and modes -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def real_mode() -> Iterator[None]:
    """Leave the tracing modes that AOTAutograd holds while it calls a compiler: torch runs on real tensors inside,
    with no autograd and no inference tensors. Fake tensors still work: they carry their own mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        yield


def is_fake(value: object) -> bool:
    """Whether `value` is a fake tensor: metadata, no storage."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def fake_mode_of(values: Iterable[object]) -> Any | None:
    """The FakeTensorMode of the first fake tensor among `values`, else the one being traced with, else None."""
    for value in values:
        if is_fake(value):
            return value.fake_mode  # type: ignore[attr-defined]
    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


def fake_mode_around(values: Iterable[object]) -> contextlib.AbstractContextManager[Any]:
    """The FakeTensorMode of the first fake tensor among `values`, entered; nothing if none is fake."""
    modes = (value.fake_mode for value in values if is_fake(value))  # type: ignore[attr-defined]
    return next(modes, contextlib.nullcontext())


def make_fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor with `tensor`'s geometry, all sizes static."""
    return mode.from_tensor(tensor, static_shapes=True)


def missing_value(node: torch.fx.Node, mode: Any | None) -> Any | None:
    """The fake value of a node that the partitioner adds without one, or None if it is not such a node: the random
    ops of a checkpointed region, which save the generator's state in the forward and draw from it in the backward."""
    # Where the op is among the arguments. The last of them takes a generator of its own as `rng_state`.
    places = {"run_and_save_rng_state": 0, "run_with_rng_state": 1, "graphsafe_run_with_rng_state": 0}
    name = getattr(node.target, "__name__", "")
    if mode is None or name not in places:
        return None
    saving = name == "run_and_save_rng_state"
    op: Any = node.args[places[name]]
    args = node.args[places[name] + 1 :]
    kwargs = {key: value for key, value in node.kwargs.items() if key != "rng_state"}
    values = torch.fx.node.map_arg((args, kwargs), lambda argument: argument.meta["val"])
    with mode:
        drawn = op(*values[0], **values[1])
    if not saving:
        return drawn
    states = [user for user in node.users if user.args[1] == 0 and "val" in user.meta]
    for user in states:
        # Its size is a constant, of which fakes made under dynamic shapes make a symbol that no input holds.
        state = user.meta["val"]
        with mode:
            user.meta["val"] = torch.empty([hint_of(n) for n in state.shape], dtype=state.dtype, device=state.device)
    return (states[0].meta["val"] if states else None, drawn)


def hint_of(size: Any) -> int:
    """The value that a size had when it was traced."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


# --- symbolic shapes --------------------------------------------------------------------------------------------------


def sympy_of(value: Any) -> Any:
    """The sympy expression of a size or scalar: SymInt, SymFloat, SymBool, int, float, bool or sympy itself.

    Raises TypeError for anything else.
    """
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, float):
        return sympy.Float(value)
    if isinstance(value, sympy.Basic):
        return value
    raise TypeError(f"no sympy expression for {type(value).__name__}: {value!r}")


def shape_env_of(values: Iterable[object]) -> ShapeEnv | None:
    """The shape environment behind `values` (SymInts or fake tensors), or None where all shapes are static."""
    values = list(values)
    for value in values:
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value.node.shape_env
    mode = fake_mode_of(values)
    return None if mode is None else mode.shape_env


def backed_values(shape_env: ShapeEnv | None) -> Mapping[sympy.Symbol, int]:
    """The value that each backed integer symbol had in the inputs of this compile. Unbacked symbols are absent."""
    if shape_env is None:
        return MappingProxyType({})
    values = getattr(shape_env, "backed_var_to_val", None)
    if values is None:  # before torch 2.11
        values = shape_env.var_to_val
    # A nested tensor's ragged size is a SingletonInt, which has no value.
    return MappingProxyType({symbol: int(v) for symbol, v in values.items() if getattr(v, "is_Integer", False)})


def value_ranges(shape_env: ShapeEnv | None) -> Mapping[sympy.Symbol, tuple[sympy.Expr, sympy.Expr]]:
    """The least and greatest value that each symbol may take, both inclusive."""
    if shape_env is None:
        return MappingProxyType({})
    return MappingProxyType({symbol: (r.lower, r.upper) for symbol, r in shape_env.var_to_range.items()})


def is_unbacked(shape_env: ShapeEnv | None, symbol: sympy.Symbol) -> bool:
    """Whether `symbol` is only known at run time (`u0`): it has a range, but no value to compile for."""
    return shape_env is not None and shape_env.is_unbacked_symint(symbol)


def evaluate_statically(shape_env: ShapeEnv | None, condition: Any) -> bool | None:
    """True or False where the ranges and guards so far already decide `condition`, else None. Adds no guard."""
    if condition in (True, sympy.true):
        return True
    if condition in (False, sympy.false):
        return False
    if shape_env is None:
        return None
    answer = shape_env._maybe_evaluate_static(condition)
    return None if answer is None else bool(answer)


def evaluate_with_guard(shape_env: ShapeEnv | None, condition: Any) -> bool:
    """Decide `condition` for this compile's sizes, and record the guard that makes another answer recompile.

    Raises GuardOnDataDependentSymNode where it hangs on an unbacked symbol.
    """
    static = evaluate_statically(shape_env, condition)
    if static is not None:
        return static
    if shape_env is None:
        raise ValueError(f"{condition} has symbols, but the graph has no shape environment")
    return bool(shape_env.evaluate_expr(condition))


def without_guards(shape_env: ShapeEnv | None) -> contextlib.AbstractContextManager[Any]:
    """Questions about sizes that are asked inside leave no guard: for costs, never for what must hold."""
    return contextlib.nullcontext() if shape_env is None else shape_env.suppress_guards()


def simplify(shape_env: ShapeEnv | None, expression: sympy.Expr) -> sympy.Expr:
    """`expression` with the equalities applied that guards have established."""
    return expression if shape_env is None else shape_env.simplify(expression)


def known(condition: Any) -> bool:
    """Whether a condition on sizes (a bool or SymBool) holds whatever they are; no guard is made."""
    return bool(statically_known_true(condition))


def same_statically(a: Any, b: Any) -> bool:
    """Whether two sizes (int or SymInt) are known to be equal, without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    left, right = sympy_of(a), sympy_of(b)
    if left == right:
        return True
    return evaluate_statically(shape_env_of([a, b]), sympy.Eq(left, right)) is True


def resolved_bindings(shape_env: ShapeEnv | None, bindings: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A node's `unbacked_bindings` (symbol -> pytree key path into its result), renamed symbols by their new name."""
    from torch.fx.experimental.symbolic_shapes import resolve_unbacked_bindings

    return resolve_unbacked_bindings(shape_env, dict(bindings)) or {}


# --- operators --------------------------------------------------------------------------------------------------------


def decomposition_registry() -> dict[OpOverload, Callable[..., Any]]:
    """Every decomposition that torch has, by op. Torch owns the table: a copy is returned."""
    from torch._decomp import decomposition_table

    return {op: rule for op, rule in decomposition_table.items() if isinstance(op, OpOverload)}


def core_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Torch's decompositions into the core ATen op set."""
    from torch._decomp import core_aten_decompositions

    return {op: rule for op, rule in core_aten_decompositions().items() if isinstance(op, OpOverload)}


def written_arguments(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The nodes whose storage `node`'s op writes, by its schema."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return ()
    written: list[torch.fx.Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.fx.Node):
                    written.append(item)
    return tuple(written)


def aliased_argument(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node whose storage `node`'s result shares (it is a view, a getitem of views, a wait), or None if fresh."""
    import operator

    target = node.target
    if target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(target, OpOverload):
        return None
    if target in _UNANNOTATED_ALIASES or target.name().startswith("_c10d_functional::wait_tensor"):
        return node.args[0]  # type: ignore[return-value]
    schema = target._schema
    if not any(result.alias_info is not None for result in schema.returns):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            return value if isinstance(value, torch.fx.Node) else None
    return None


def held_by_backward(module: torch.fx.GraphModule, visible: frozenset[int]) -> frozenset[str]:
    """Names of the outputs of a forward graph whose memory nobody but its backward holds: not in `visible` (positions),
    and sharing no storage with an input or a visible output."""

    def root(node: torch.fx.Node) -> torch.fx.Node:
        while (base := aliased_argument(node)) is not None:
            node = base
        return node

    outputs: Any = module.graph.output_node().args[0]
    seen = {root(item) for n, item in enumerate(outputs) if n in visible and isinstance(item, torch.fx.Node)}
    return frozenset(
        item.name
        for n, item in enumerate(outputs)
        if n not in visible and isinstance(item, torch.fx.Node)
        if (base := root(item)).op == "call_function" and base not in seen
    )


# Their schemas promise a fresh tensor, their kernels return a view.
_UNANNOTATED_ALIASES = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default})


def is_collective(target: Any) -> bool:
    """Whether `target` talks to other ranks (the functional collectives and their wait)."""
    namespace = target.namespace if isinstance(target, OpOverload) else ""
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")


def group_ranks(name: str) -> tuple[int, ...]:
    """The global ranks of the process group called `name`, in the group's order; () if there is no such group."""
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


def is_random(target: Any) -> bool:
    """Whether two calls of `target` with the same arguments may differ."""
    return isinstance(target, OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags or target.name().startswith("rngprims::")
    )


def is_pointwise(target: Any) -> bool:
    """Whether torch tags `target` as elementwise with broadcasting."""
    return isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags


def is_higher_order(target: Any) -> bool:
    """Whether `target` takes subgraphs or other ops (cond, while_loop, auto_functionalized, ...)."""
    return isinstance(target, HigherOrderOperator)


def is_pure(node: torch.fx.Node) -> bool:
    """Whether `node` may be dropped when unused and shared when repeated: it computes a value and does nothing else.

    Random ops are not pure: dropping one would shift what every later random op draws. Asserts, collectives, writes
    and higher-order ops are not either.
    """
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    target = node.target
    if is_random(target) or is_collective(target) or is_higher_order(target):
        return False
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        return False
    return not node.is_impure()


def make_graph_module(root: torch.nn.Module | dict[str, Any], graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule whose Python code is only generated if somebody runs or prints it. root: where its attributes are,
    a module or a mapping."""
    from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        return _make_graph_module(root, graph, class_name=name)


# --- torch.export -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """A graph made by torch.export, functional and decomposed.

    inputs: per placeholder {"kind": "state" | "tensor" | "constant", "name", ...}; outputs: per output {"kind": "user"
    | "state" | "input", ...}, the last two for what is written back to a buffer or an argument. state: tensors by name.
    in_spec, out_spec: pytrees as JSON. ranges: the least and greatest value of each size that may vary.
    """

    module: torch.fx.GraphModule
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    state: Mapping[str, torch.Tensor]
    in_spec: str
    out_spec: str
    ranges: Mapping[sympy.Symbol, tuple[int, int | None]]


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> Exported:
    """torch.export of a module, decomposed. Errors: what torch.export raises; ValueError for inputs other than tensors
    and plain values."""
    from torch.export.graph_signature import InputKind, OutputKind
    from torch.utils import _pytree as pytree

    program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    program = program.run_decompositions(dict(decompositions))
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph_module.graph.find_nodes(op="placeholder")}
    inputs, positions = list[dict[str, Any]](), dict[str, int]()
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            inputs.append({"kind": "state", "name": spec.target})
        elif spec.kind == InputKind.USER_INPUT:
            positions[name] = len(positions)
            if isinstance(placeholders[name].meta.get("val"), torch.Tensor):
                inputs.append({"kind": "tensor", "name": name})
            elif isinstance(getattr(spec.arg, "value", None), (bool, int, float, str, type(None))):
                inputs.append({"kind": "constant", "name": name, "value": getattr(spec.arg, "value", None)})
            else:
                raise ValueError(f"the argument {name} is no tensor and no plain value")
        else:
            raise ValueError(f"the graph takes {spec.kind.name}, which a package cannot hold")
    outputs: list[dict[str, Any]] = []
    for out in signature.output_specs:
        if out.kind == OutputKind.USER_OUTPUT:
            outputs.append({"kind": "user"})
        elif out.kind == OutputKind.BUFFER_MUTATION:
            outputs.append({"kind": "state", "name": out.target})
        elif out.kind == OutputKind.USER_INPUT_MUTATION:
            outputs.append({"kind": "input", "at": positions[str(out.target)]})
        else:
            raise ValueError(f"the graph returns {out.kind.name}, which a package cannot hold")
    (signature_of_calls, *_) = program.module_call_graph
    in_spec, out_spec = signature_of_calls.signature.in_spec, signature_of_calls.signature.out_spec
    ranges = {symbol: _ends(bounds) for symbol, bounds in program.range_constraints.items() if symbol.is_Symbol}
    return Exported(
        program.graph_module,
        inputs,
        outputs,
        {**program.state_dict, **program.constants},
        pytree.treespec_dumps(in_spec),
        pytree.treespec_dumps(out_spec),
        ranges,
    )


def _ends(bounds: Any) -> tuple[int, int | None]:
    """The ends of a range of sizes; 0 for no lower one, None for no upper one."""
    low, high = bounds.lower, bounds.upper
    return int(low) if low.is_Integer else 0, int(high) if high.is_Integer and int(high) < 2**62 else None


def guard_count(shape_env: ShapeEnv | None) -> int:
    """How many guards there are by now."""
    return 0 if shape_env is None else len(shape_env.guards)


def guards_since(shape_env: ShapeEnv | None, count: int) -> list[Any]:
    """The guards that were added after there were `count`, as sympy booleans."""
    return [] if shape_env is None else [guard.expr for guard in shape_env.guards[count:]]
