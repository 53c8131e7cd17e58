"""Triton kernels that a plugin wrote, in a contraction's place: for templates (docs/plugins/gpu-template.md).

In: a `@triton.jit` function and what a launch of it takes. Out: a `KernelCall`, whose text is a kernel of one line that
calls the function. litz compiles, caches, measures and launches the call as it does its own kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from litz.cache.disk import digest
from litz.ir import Buffer, KernelCall, Program, Template, TensorRef
from litz.ir.index import Expr, to_expr
from litz.targets.triton.dialect import FLOAT8_TYPES, POINTER_TYPES
from litz.targets.triton.generate import launch_settings
from litz.targets.triton.indices import index_type_of
from litz.targets.triton.text import IndexText, size_text
from litz.tiles.names import Names, name_all
from litz_plugins import COUNTERS, KernelSource

INDEX = "INDEX"
"""The name of a parameter that a kernel may have: tl.int32, or tl.int64 where offsets may not fit into 32 bits."""


def triton_call(
    kernel: Any,
    args: Sequence[Any],
    grid: Any,
    constants: Mapping[str, Any],
    *,
    operation: Template,
    program: Program,
    meaning: Callable[..., Any] | None = None,
    outputs: Sequence[str] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    counters: int = 0,
) -> KernelCall:
    """Returns a call of a Triton kernel that takes the place of a contraction, as `kernel[grid](*args, **constants)`.

    - kernel: a function with `@triton.jit`, at the top of a module that other processes can import by its name.
    - args: the values of the parameters that are not constants, in their order. A `TensorRef` is a pointer to the first
      element of a tensor that the kernel reads; the name of a buffer is a pointer to a buffer that the kernel writes
      whole; a number or a sympy expression is an int (a size that is known is a constexpr); `COUNTERS` is a pointer to
      `counters` zeros of int32, which the kernel must set back to 0.
    - grid: how many programs, a number or a sympy expression. The grid has one axis. A grid of 0 launches nothing.
    - constants: the values of `tl.constexpr` parameters, by name: bool, int, float, str, None, or a type of Triton's.
      A parameter named INDEX needs no value: it is the type that program ids and offsets must be converted to.
    - operation, program: the contraction, and the program that it is in.
    - meaning: computes the same with torch. Called with the tensors of the `TensorRef`s of `args`, in order; returns a
      tensor for each of `outputs`. None: the contraction's own operator.
    - outputs: the buffers that the kernel writes; None: those of the contraction.
    - num_warps: of 32 threads, per program. num_stages: at most, of Triton's pipeline: fewer where shared memory is
      short.

    Errors: TypeError for arguments that do not fit the kernel's parameters, and for what Triton has no type for.
    """
    written = tuple(operation.outputs if outputs is None else outputs)
    names = [name for name in kernel.arg_names if name not in constants and name != INDEX]
    unknown = sorted(constants.keys() - set(kernel.arg_names))
    if unknown or len(args) != len(names):
        wrong = f"it has no parameter {unknown[0]!r}" if unknown else f"{len(args)} args for {', '.join(names)}"
        raise TypeError(f"triton_call of {_name(kernel)}: {wrong}; its parameters are {', '.join(kernel.arg_names)}")
    values = [item if isinstance(item, (TensorRef, str)) else to_expr(item) for item in args]
    refs = tuple(item for item in values if isinstance(item, TensorRef))
    buffers = dict.fromkeys(_buffer(item) for item in values if isinstance(item, (TensorRef, str)) and item != COUNTERS)
    given: list[Buffer] = [program.buffers[name] for name in buffers]
    numbers = [item for item in values if hasattr(item, "free_symbols")]
    sizes = [to_expr(grid), *numbers, *(ref.layout.offset for ref in refs)]
    index_type, open_limits = index_type_of([*(b.layout.span for b in given), *sizes], _symbolic(sizes, given))
    called = name_all(buffers, {}, [*sizes, *open_limits])
    limits = [size_text(expr, called.sizes) for expr in open_limits]
    index = index_type if limits or index_type != INDEX else "tl.int32"
    own = dict(constants) | ({INDEX: index} if INDEX in kernel.arg_names else {})
    text = _text(kernel, [_argument(item, called) for item in values], own, called, bool(counters), bool(limits))
    launch = {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "grid": int(grid) if to_expr(grid).is_Integer else size_text(to_expr(grid), called.sizes),
        **({"counters": counters} if counters else {}),
    }
    body = inspect.getsource(kernel.fn)
    settings = launch_settings(given, program.is_unaligned, launch, len(called.sizes), limits, body, _pointer)
    source = KernelSource(
        operation.name,
        "triton",
        text,
        f"litz_{kernel.fn.__name__}",
        (*buffers, *[COUNTERS] * bool(counters), *called.sizes),
        settings,
        suffix="py",
    )
    target, arguments, more = (
        (operation.target, operation.args, operation.kwargs) if meaning is None else (meaning, refs, {})
    )
    return KernelCall(
        operation.name,
        operation.device,
        target,
        arguments,
        more,
        outputs=written,
        origins=operation.origins,
        source=source,
    )


def _name(kernel: Any) -> str:
    return f"{kernel.fn.__module__}.{kernel.fn.__name__}"


def _buffer(item: TensorRef | str) -> str:
    return item.buffer if isinstance(item, TensorRef) else item


def _symbolic(sizes: Sequence[Expr], buffers: Sequence[Buffer]) -> bool:
    return any(expr.free_symbols for expr in (*sizes, *(buffer.layout.span for buffer in buffers)))


def _pointer(buffer: Buffer) -> str:
    """Triton's type, the one that Triton itself gives a tensor."""
    if buffer.dtype in FLOAT8_TYPES:
        return f"*{FLOAT8_TYPES[buffer.dtype]}"
    if buffer.dtype not in POINTER_TYPES:
        raise TypeError(f"triton_call: Triton has no type for {buffer.dtype}, the type of {buffer.name}")
    return POINTER_TYPES[buffer.dtype]


def _argument(item: Any, called: Names) -> str:
    """An argument's text in the kernel."""
    text = IndexText(called.index_names, {})
    if isinstance(item, str):
        return "counters" if item == COUNTERS else called.buffers[item]
    if not isinstance(item, TensorRef):
        return text(item)
    pointer = called.buffers[item.buffer]
    return pointer if item.layout.offset == 0 else f"{pointer} + {text(item.layout.offset)}"


def _text(
    kernel: Any, arguments: Sequence[str], constants: Mapping[str, Any], called: Names, counters: bool, index: bool
) -> str:
    """The module: a kernel that calls the plugin's with its arguments in place."""
    function, waiting = kernel.fn, iter(arguments)
    if function.__module__ == "__main__" or function.__qualname__ != function.__name__:
        raise TypeError(
            f"triton_call of {_name(kernel)}: the process that compiles the kernel cannot import it; "
            "write the kernel at the top of a module of your package"
        )
    passed = [
        f"{name}={_constant(kernel, name, constants[name])}" if name in constants else f"{name}={next(waiting)}"
        for name in kernel.arg_names
    ]
    parameters = [*called.buffers.values(), *["counters"] * counters, *called.sizes.values()]
    parameters += ["INDEX: tl.constexpr"] * index
    name = function.__name__
    return "\n".join(
        [
            f"# {_name(kernel)}, with all that it calls: {_content(kernel)}",
            "import triton",
            "import triton.language as tl",
            f"from {function.__module__} import {name}",
            "",
            "",
            "@triton.jit",
            f"def litz_{name}({', '.join(parameters)}):",
            f"    {name}({', '.join(passed)})",
            "",
        ]
    )


def _content(kernel: Any) -> str:
    """Returns a digest of the text of the kernel, and of functions that it calls: the text is the key of a build."""
    key = getattr(kernel, "cache_key", None)  # Triton's interpreter has none
    return digest(str(key or inspect.getsource(kernel.fn)))[:16]


def _constant(kernel: Any, name: str, value: Any) -> str:
    import triton.language as tl

    if name == INDEX:
        return str(value)
    if isinstance(value, tl.dtype):
        return f"tl.{next(word for word, item in vars(tl).items() if item is value)}"
    if isinstance(value, torch.dtype):
        return f"tl.{str(value).removeprefix('torch.')}"
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else f"float({str(value)!r})"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    raise TypeError(f"triton_call of {_name(kernel)}: the constant {name} is a {type(value).__name__}")


__all__ = ["INDEX", "triton_call"]
