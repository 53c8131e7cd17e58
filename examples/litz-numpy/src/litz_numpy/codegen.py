"""NumpyCodegen: a KernelPlan in, NumPy text out, and a function that launches it.

The text names neither buffers nor the kernel, so that kernels that differ only in those are one. Its arguments are
p0, p1, ... (addresses of the buffers in the plan's order) and s0, s1, ... (sizes).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from litz.cache.disk import digest
from litz.codegen.kernel_plan import KernelPlan
from litz.errors import CodegenError, out_of_bounds
from litz_plugins import CodegenContext, KernelSource

from . import support
from .body import Body
from .dialect import ELEMENTS
from .index import index_text

FILE = "kernel.py"


class NumpyCodegen:
    """The code generator for the CPU."""

    language = "numpy"

    def generate(self, plan: KernelPlan, context: CodegenContext) -> KernelSource:
        """NumPy text for one kernel. CodegenError if it has none."""
        try:
            return generate(plan)
        except NotImplementedError as error:
            problem = f"no NumPy for {' + '.join(plan.origins)}: {error}"
            raise CodegenError(plan.name, problem, device=str(plan.device)) from error

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        """The function that launches a kernel; its text lies in the cache, for tracebacks and readers."""
        make = lambda folder: (folder / FILE).write_text(source.text)  # noqa: E731
        path = context.cache.build("numpy", digest(source.text), make, needs=(FILE,)) / FILE
        namespace: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        return _checked(namespace[source.symbol], source)


def generate(plan: KernelPlan) -> KernelSource:
    """The source of one kernel: a function for each of its loops, and one that runs them."""
    spans = {name: buffer.layout.span for name, buffer in plan.buffers.items()}
    sizes = tuple(dict.fromkeys([*plan.sizes, *sorted(_symbols(spans.values()), key=str)]))
    size_texts = {size: f"s{number}" for number, size in enumerate(sizes)}
    buffers = {name: f"p{number}" for number, name in enumerate(plan.buffers)}
    dtypes = {name: buffer.dtype for name, buffer in plan.buffers.items()}
    parameters = ", ".join([*buffers.values(), *size_texts.values()])
    bounds: list[list[str]] = []
    functions, calls = [], []
    for number, loop in enumerate(plan.loops):
        lines = Body(loop, buffers, dtypes, size_texts, bounds).write()
        functions.append("\n    ".join([f"def loop{number}({parameters}):", *lines]))
        calls.append(f"loop{number}({parameters})")
    opened = [
        f"{text} = flat({text}, {index_text(spans[name], size_texts)}, {ELEMENTS[dtypes[name]]})"
        for name, text in buffers.items()
    ]
    kernel = ['@np.errstate(all="ignore")', f"def kernel({parameters}):", *(f"    {line}" for line in opened + calls)]
    code = "\n\n\n".join([*functions, "\n".join(kernel)])
    called = sorted(set(re.findall(r"\w+", code)) & vars(support).keys() - {"np"})
    text = f"import numpy as np\nfrom litz_numpy.support import {', '.join(called)}\n\n\n{code}\n"
    arguments, settings = (*plan.buffers, *plan.values(sizes)), {"bounds": bounds, "buffers": len(buffers)}
    return KernelSource(plan.name, "numpy", text, "kernel", arguments, settings, suffix="py")


def _symbols(exprs: Any) -> set[Any]:
    return {symbol for expr in exprs for symbol in expr.free_symbols}


def _checked(kernel: Callable[..., None], source: KernelSource) -> Callable[..., None]:
    """A kernel that says what is out of range as core does."""
    bounds, buffers = source.settings["bounds"], source.settings["buffers"]
    if not bounds:
        return kernel

    def launch(*arguments: int) -> None:
        try:
            kernel(*arguments)
        except support.OutsideError as error:
            size, what = bounds[error.number]
            values = {f"s{number}": value for number, value in enumerate(arguments[buffers:])}
            known = ", ".join(f"{name} = {value}" for name, value in values.items() if name in size)
            raise out_of_bounds(source.name, f"{size} ({known})" if known else size, what) from None

    return launch
