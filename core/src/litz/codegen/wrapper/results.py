"""A library call that makes its tensors: the call, names for its results, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import torch

from litz.execution.plan import Result
from litz.execution.results import is_torchs
from litz.ir import Extern
from litz.ir.operation import Unbacked
from litz.origins.plugin_call import PluginCall

from ..bindings import FRESH
from ..sizes import python_text, tuple_text
from ..strides import strides_differ
from .spelling import Spelling, device_name


def call_lines(extern: Extern, spelling: Spelling) -> Iterator[str]:
    """Yields the call of a library op, names for its results and sizes, and checks of what its meta function
    promised."""
    call, results = spelling.call(extern), spelling.plan.results[extern.name]
    outputs = extern.outputs
    if isinstance(extern.target, PluginCall) and not extern.unbacked:
        call = f"_results_of({spelling.names.target(extern.target)}, {call}, {len(outputs)})"
    elif not isinstance(extern.target, torch._ops.OpOverload) and not extern.unbacked:
        call = f"_results({call})"  # without a schema nobody knows whether it gives a tensor or a list of them
    single = len(outputs) == 1 and outputs[0] is not None and not _returns_list(extern)
    if extern.unbacked or (results and not single):
        whole = f"{extern.name}_result"
        yield f"{whole} = {call}"
        for result in results:
            position = outputs.index(result.buffer)
            yield f"{result.buffer} = {whole}" if single else f"{result.buffer} = {whole}[{position}]"
        for item in extern.unbacked:
            yield f"{item.symbol} = {_unbacked_text(item, whole)}"
        yield f"del {whole}"
    elif results:
        yield f"{results[0].buffer} = {call}"
    else:
        yield call
    for result in results:
        if result.sizes:
            yield from _expect(result, extern, spelling)
    for result in results:
        if result.strides != "trusted":
            yield from _plan_strides(result, extern, spelling)


def _expect(result: Result, extern: Extern, spelling: Spelling) -> Iterator[str]:
    """Have type and sizes of the result compared where torch's op finds sizes out. Sizes that the op finds out as they
    are have Checks of their own."""
    name, buffer = result.buffer, spelling.program.buffers[result.buffer]
    wanted = buffer.layout.size
    dims = (dim for dim in range(len(wanted)) if dim not in result.found_out)
    # The fake kernel of torch 2.11's `_unique2` gives the inverse the type of the input.
    conditions = [f"{name}.dtype != {buffer.dtype}"]
    conditions += [f"{name}.size({dim}) != {python_text(wanted[dim])}" for dim in dims]
    yield f"if {' or '.join(conditions)}:"
    yield f"    raise _unlike({extern.target_name!r}, {name}, {tuple_text(wanted)}, {buffer.dtype})"


def _plan_strides(result: Result, extern: Extern, spelling: Spelling) -> Iterator[str]:
    """Give a call's result the strides that the kernels after it were made for, where it has others."""
    name, buffer, every = result.buffer, spelling.program.buffers[result.buffer], result.strides == "every"
    layout = buffer.layout
    if not is_torchs(extern.target):
        found_out = result.found_out
        sizes = (
            f"{name}.size({dim})" if dim in found_out else python_text(size) for dim, size in enumerate(layout.size)
        )
        place = f"({''.join(f'{size}, ' for size in sizes)}), {tuple_text(layout.stride)}"
        kind = f"{buffer.dtype}, {device_name(buffer.device)}"
        plain = not isinstance(extern.target, PluginCall)
        called = repr(str(extern.target)) if plain else spelling.names.target(extern.target)
        yield f"{name} = _given({name}, {place}, {kind}, {called})"
        before = takewhile(lambda result: result.buffer != name, spelling.plan.results[extern.name])
        others = dict.fromkeys([*(ref.buffer for ref in extern.refs), *(result.buffer for result in before)])
        if others and plain and name not in extern.aliases:
            yield f"{name} = _apart({name}, ({', '.join(others)},))"
        return
    place = f"({name}, {tuple_text(layout.size)}, {tuple_text(layout.stride)})"
    if extern.target not in FRESH:
        yield f"{name} = {'_planned' if every else '_planned_inside'}{place}"
    elif condition := strides_differ(name, layout, every):
        yield f"if {condition}:"
        yield f"    {name} = {'_restrided' if every else '_planned_inside'}{place}"


def _unbacked_text(item: Unbacked, text: str) -> str:
    for step in item.path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step[0] == "divide":
            text += f" // {step[1]}"
        elif step[0] != "item":
            text += f".{step[0]}({', '.join(map(str, step[1:]))})"
    return text


def _returns_list(extern: Extern) -> bool:
    """Returns whether the call gives a sequence, even where it holds one tensor."""
    if isinstance(extern.target, torch._ops.OpOverload):
        returns = extern.target._schema.returns
        return len(returns) > 1 or (len(returns) == 1 and not isinstance(returns[0].type, (torch.TensorType,)))
    return True
