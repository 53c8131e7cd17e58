"""Triton kernels that the user's function launches: each is an operation that says what it reads and what it writes.

In: the higher-order ops that dynamo and `torch.library.wrap_triton` make of `kernel[grid](...)`. Out: a KernelCall,
which the wrapper launches as it does litz's own, with grid, constants and configurations as the user gave them. What
the kernel writes is a copy of what was there (in a graph nothing is written in place), which the passes take out where
nobody reads the old values, and no copy where nothing was written yet. What only Triton itself can launch (descriptors
made on the host, clusters) is a call of Triton, with the same reads and writes. On other devices it stays eager's call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from litz.capture.torch_api import is_uninitialized
from litz.ir import Extern, KernelCall, Layout, TensorRef
from litz.ir.index import ONE, to_expr
from litz.lower.context import LoweringContext, same_strides
from litz.lower.registry import ANY_DTYPE
from litz.lower.strides import layout_of, overlap
from litz.lower.view import Tensor, View
from litz_plugins import KernelSource

from . import torch_table

LIBRARY_OPTIONS = frozenset({"num_ctas", "launch_cooperative_grid", "launch_pdl", "launch_cluster", "ir_override"})
"""Options that a launch by `cuLaunchKernel` alone does not honour."""
OPTIONS = frozenset({"num_warps", "num_stages", "maxnreg", "enable_fp_fusion", "debug"})
"""Options of Triton's compiler that a call may have besides parameters."""
LOADER = "litz_triton_kernels.launch"
"""The module that builds, launches and packs what `_source` describes."""
UNSTORABLE = "is a Triton kernel of the user's, which torch keeps in a table of the process"


@dataclass(frozen=True)
class ByTriton:
    """The meaning of the operation: Triton's own launch. kernel: with what is constant. fresh: parameter and dtype of
    each tensor that the kernel is the first to write; the call makes them and returns them."""

    kernel: torch_table.UserKernel
    fresh: tuple[tuple[str, torch.dtype], ...]

    @property
    def __name__(self) -> str:
        return self.kernel.name

    def __repr__(self) -> str:
        return f"Triton's own launch of {self.kernel.name}"

    def __call__(
        self,
        grids: Sequence[Sequence[int]],
        given: Mapping[str, Any],
        places: Sequence[tuple[Sequence[int], Sequence[int]]],
        descriptors: Mapping[str, Any],
        device: torch.device,
    ) -> list[torch.Tensor]:
        """grids: by configuration. given: tensors and numbers by parameter. places: sizes and strides of what is
        fresh. descriptors: as torch has them."""
        made = {
            name: torch.empty_strided(size, stride, dtype=dtype, device=device)
            for (name, dtype), (size, stride) in zip(self.fresh, places, strict=True)
        }
        torch_table.launch_user_kernel(self.kernel.kernel, grids, {**given, **made}, descriptors)
        return list(made.values())


@dataclass(frozen=True)
class Asked:
    """The call, lowered. grids: three extents for each configuration. given: numbers and references by parameter, of
    what is fresh too. fresh: buffers by parameter. written: buffers that the kernel writes besides."""

    kernel: torch_table.UserKernel
    grids: tuple[tuple[Any, ...], ...]
    given: Mapping[str, Any]
    fresh: Mapping[str, Any]
    written: tuple[str, ...]
    descriptors: Mapping[str, Any]


def functional(
    ctx: LoweringContext,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Sequence[Any]],
    tma_descriptor_metadata: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    tensors_to_clone: Sequence[str],
) -> dict[str, View]:
    """Lowers a launch of a user's Triton kernel. Returns the tensors that the kernel writes, as they are afterwards, by
    the name of the parameter. Errors: NotImplementedError for what stays a call of Triton's."""
    kernel = torch_table.user_kernel(kernel_idx, constant_args_idx)
    device = _device(ctx, kwargs)
    given, fresh, results = dict(kwargs), {}, {}
    for name in tensors_to_clone:
        source: Any = ctx.node.kwargs["kwargs"][name]  # type: ignore[index, call-overload]
        layout = layout_of(ctx.meta[name])
        if overlap(layout, ctx.hint):
            raise NotImplementedError(f"{name} is written, and its elements share memory")
        if is_uninitialized(source):
            buffer = ctx.new_buffer(layout.size, kwargs[name].dtype, device, layout.stride)
            fresh[name], results[name] = buffer, View.whole(buffer)
        else:
            results[name] = ctx.copy(kwargs[name], layout.stride)
        given[name] = _whole(results[name], layout)
    written = tuple(view.buffer.name for name, view in results.items() if name not in fresh)
    arguments = {name: _argument(ctx, name, value) for name, value in given.items()}
    asked = Asked(kernel, tuple(map(tuple, grid)), arguments, fresh, written, tma_descriptor_metadata)
    _add(ctx, asked, device)
    return results


def in_place(
    ctx: LoweringContext,
    kernel_idx: int,
    constant_args_idx: int,
    grid: Sequence[Sequence[Any]],
    tma_descriptor_metadata: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Lowers a user's kernel that writes its arguments in place. Errors: NotImplementedError for an argument that is no
    strided part of memory."""
    kernel = torch_table.user_kernel(kernel_idx, constant_args_idx)
    device = _device(ctx, kwargs)
    fake = {name: _meta(ctx, name) for name in kwargs}
    written = torch_table.kernel_writes(kernel_idx, constant_args_idx, fake, tma_descriptor_metadata)
    for name in written:
        if not isinstance(kwargs[name], View) or kwargs[name].ref() is None:
            raise NotImplementedError(f"{name} is written, and is no strided part of memory")
    arguments = {name: _argument(ctx, name, value) for name, value in kwargs.items()}
    buffers = tuple(dict.fromkeys(arguments[name].buffer for name in written))
    _add(ctx, Asked(kernel, tuple(map(tuple, grid)), arguments, {}, buffers, tma_descriptor_metadata), device)


def _device(ctx: LoweringContext, given: Mapping[str, Any]) -> torch.device:
    """Returns the device that the kernel runs on. Errors: NotImplementedError unless all its tensors are on one device,
    whose target has the ability "user_kernels"."""
    devices = {value.device for value in given.values() if isinstance(value, Tensor)}
    device = next(iter(devices), None)
    if device is None or len(devices) != 1 or "user_kernels" not in ctx.target_of(device).abilities:
        raise NotImplementedError("a kernel whose tensors are not all on one device that runs users' kernels")
    return device


def _whole(view: View, layout: Layout) -> TensorRef:
    return TensorRef(view.buffer.name, layout)


def _meta(ctx: LoweringContext, name: str) -> Any:
    item = ctx.node.kwargs["kwargs"][name]  # type: ignore[index, call-overload]
    return item.meta.get("val") if isinstance(item, torch.fx.Node) else item


def _argument(ctx: LoweringContext, name: str, value: Any) -> Any:
    """A tensor lies exactly as in eager: the kernel was handed its strides."""
    if not isinstance(value, Tensor):
        return value
    wanted = layout_of(_meta(ctx, name)).stride
    found = value.ref() if isinstance(value, View) else None
    if found is not None and same_strides(value.size, found.layout.stride, wanted):
        return found
    # One element for all along a dimension of stride 0.
    size = tuple(ONE if step == 0 else extent for step, extent in zip(wanted, value.size, strict=True))
    if overlap(Layout(size, wanted), ctx.hint) or value.numel == 0:
        return ctx.ref(value, wanted)
    made = ctx.pointwise(size, value.dtype, value.device, value.load, stride=wanted)
    return TensorRef(made.buffer.name, Layout(value.size, wanted))


def _add(ctx: LoweringContext, asked: Asked, device: torch.device) -> None:
    """Append the operation."""
    named = {**asked.kernel.constants, **asked.given}
    refs = {name: value for name, value in named.items() if name not in asked.fresh}
    fresh = tuple((name, buffer.dtype) for name, buffer in asked.fresh.items())
    places = tuple((buffer.layout.size, buffer.layout.stride) for buffer in asked.fresh.values())
    outputs = tuple(buffer.name for buffer in asked.fresh.values())
    why = _why_by_triton(asked, named)
    source = None if why else _source(ctx, asked, named)
    operation: type[Extern] = KernelCall if source is not None else Extern
    fields = {} if source is None else {"source": source}
    ctx.add_extern(
        ByTriton(asked.kernel, fresh),
        (asked.grids, refs, places, dict(asked.descriptors), device),
        {},
        device,
        operation=operation,
        outputs=outputs,
        mutates=asked.written,
        effect=not outputs and not asked.written,
        **fields,
    )


def _why_by_triton(asked: Asked, named: Mapping[str, Any]) -> str | None:
    """Returns why Triton itself has to launch the kernel; None where litz does."""
    kernel = asked.kernel
    if asked.descriptors:
        return "tensor descriptors made on the host"
    for config in kernel.configs:
        if (getattr(config, "num_ctas", 1) or 1) > 1 or getattr(config, "ir_override", None):
            return "clusters of programs"
        if getattr(config, "pre_hook", None) is not None:
            return "a configuration with a hook"
        if not config.kwargs.keys() <= kernel.constexprs:
            return "a configuration of what is no constexpr"
    known = {*kernel.parameters, *OPTIONS}
    unknown = sorted(named.keys() - known)
    if unknown:
        return f"the option {unknown[0]}"
    if getattr(kernel.function, "pre_run_hooks", None):
        return "hooks before it runs"
    missing = [p for p in kernel.parameters if p not in named and p not in kernel.defaults and p not in _tuned(kernel)]
    if missing:
        return f"no value for {missing[0]}"
    for name in kernel.parameters:
        value = named.get(name, kernel.defaults.get(name))
        passed = name not in kernel.constexprs and name not in _tuned(kernel)
        if passed and not isinstance(value, (TensorRef, bool, int, float, sympy.Basic, type(None))):
            return f"{name}, which is {type(value).__name__}"
    if any(isinstance(named.get(name), sympy.Basic) for name in kernel.constexprs):
        return "a constexpr that is known at run time only"
    return None


def _tuned(kernel: torch_table.UserKernel) -> frozenset[str]:
    return frozenset(name for config in kernel.configs for name in config.kwargs)


def _source(ctx: LoweringContext, asked: Asked, named: Mapping[str, Any]) -> KernelSource:
    """Returns what `litz_triton_kernels.launch` needs, and describes: arguments are the tensors' buffers and the sizes,
    which its texts name a0, a1, ... by their places."""
    kernel = asked.kernel
    arguments: list[Any] = []

    def place(value: Any) -> str:
        """An argument's name in texts; a number is text itself."""
        if isinstance(value, (bool, int, float)) or (isinstance(value, sympy.Basic) and value.is_number):
            return repr(simple_number(value))
        if value not in arguments:
            arguments.append(value)
        return f"a{arguments.index(value)}"

    parameters: list[list[str]] = []
    for name in kernel.parameters:
        value = named.get(name, kernel.defaults.get(name))
        if name in kernel.constexprs or value is None or name in _tuned(kernel):
            continue
        if isinstance(value, TensorRef):
            dtype = ctx.buffers[value.buffer].dtype
            pointer, offset = place(value.buffer), place(value.layout.offset * dtype.itemsize)
            text = pointer if offset == "0" else f"({pointer} + {offset})"
            parameters.append([name, "pointer", text, str(dtype).removeprefix("torch.")])
        elif isinstance(value, sympy.Basic) and not value.is_number:
            kind = "int" if value.is_integer else "float"
            parameters.append([name, kind, place(value)])
        else:
            parameters.append([name, "constant", repr(simple_number(value))])
    grids = [[place(to_expr(extent)) for extent in (*grid, 1, 1)[:3]] for grid in asked.grids]
    sizes = {name: text for name, kind, text, *_ in parameters if kind in ("int", "float")}
    written = (*asked.written, *(buffer.name for buffer in asked.fresh.values())) if len(grids) > 1 else ()
    restored = [[place(name), place(ctx.buffers[name].nbytes)] for name in written]
    plain = {
        name: value for name, value in asked.given.items() if isinstance(value, (bool, int, float, str, type(None)))
    }
    return KernelSource(
        name=ctx.new_operation_name(),
        language="triton",
        text=f"# a kernel of the user's: {kernel.name}\n{kernel.text}",
        symbol=kernel.name,
        arguments=tuple(arguments),
        settings={
            "loader": LOADER,
            "unstorable": UNSTORABLE,
            "user_kernel": kernel.number,
            "constants": kernel.constants_number,
            "parameters": parameters,
            "grids": grids,
            "options": {name: value for name, value in named.items() if name in OPTIONS - {*kernel.parameters}},
            "key": [sizes[name] for name in kernel.key if name in sizes],
            "given": {name: value for name, value in plain.items() if name in kernel.constexprs or value is None},
            "written": restored,
        },
        suffix="py",
    )


def simple_number(value: Any) -> Any:
    """Returns a number of sympy's as Python's bool, int or float; any other value as it is."""
    if isinstance(value, sympy.Basic):
        if value in (sympy.true, sympy.false):
            return bool(value)
        return int(value) if value.is_integer else float(value)
    return value


def lowerings() -> Mapping[Any, Callable[..., Any]]:
    """Returns the lowerings by higher-order op."""
    found = torch_table.launching_ops(functional, in_place)
    for function in found.values():
        setattr(function, ANY_DTYPE, True)  # kernels load and store what litz's own loops cannot
    return found


__all__ = ["Asked", "ByTriton", "lowerings"]
