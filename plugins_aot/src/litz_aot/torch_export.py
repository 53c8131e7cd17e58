"""torch.export for packages: the one module of litz-aot that touches private parts of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._ops import OpOverload


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


def is_exported(value: object) -> bool:
    """Returns whether torch.export has made `value`."""
    return isinstance(value, torch.export.ExportedProgram)


def export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Any:
    """Returns torch.export's ExportedProgram of a module. Errors: what torch.export raises."""
    return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)


def misfit(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Returns why an ExportedProgram cannot be called with these arguments; '' where nothing speaks against it."""
    try:
        _, built = program._get_flat_args_with_check(tuple(args), dict(kwargs))
    except (ValueError, TypeError, RuntimeError, AssertionError, IndexError, KeyError) as error:
        return str(error).strip() or type(error).__name__
    expected = program.call_spec.in_spec
    return "" if built == expected else f"they are built as {built}, the program's as {expected}"


def decomposed(program: Any, decompositions: Mapping[OpOverload, Callable[..., Any]]) -> Exported:
    """Returns an ExportedProgram, which stays as it is, in ATen ops that litz takes. Errors: ValueError for inputs
    other than tensors and plain values."""
    from torch.export.graph_signature import InputKind, OutputKind
    from torch.utils import _pytree as pytree

    program = _decomposed(program, dict(decompositions))
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


def _decomposed(program: Any, table: dict[OpOverload, Callable[..., Any]]) -> Any:
    """Returns the program with its ops broken up. Each `torch.library.triton_op` is broken up too, where this version
    of torch can: the process that loads the package need not have that op."""
    if "decompose_custom_triton_ops" in inspect.signature(program.run_decompositions).parameters:
        return program.run_decompositions(table, decompose_custom_triton_ops=True)
    return program.run_decompositions(table)


def _ends(bounds: Any) -> tuple[int, int | None]:
    """The ends of a range of sizes; 0 for no lower one, None for no upper one."""
    low, high = bounds.lower, bounds.upper
    return int(low) if low.is_Integer else 0, int(high) if high.is_Integer and int(high) < 2**62 else None
