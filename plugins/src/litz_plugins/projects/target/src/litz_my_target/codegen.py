"""A code generator around core's: the same text, and a function around each kernel's launch."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Row:
    """What a kernel did so far. kernel: the first line of its text, which says what it computes."""

    kernel: str
    launches: int = 0
    seconds: float = 0.0


class TimedCodegen:
    """See `litz_plugins.Codegen`. rows: by the text of the kernel, as equal kernels are one."""

    language = "cpp"
    loads_from_source = True  # `load` needs nothing but the source, so the graph cache may keep graphs with its kernels

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def generate(self, kernel, context):
        """Returns the `litz_plugins.KernelSource` of a `litz.codegen.kernel_plan.KernelPlan`."""
        return core().generate(kernel, context)

    def load(self, source, context):
        """Builds the text and returns what launches it: a function of an int for each buffer (its address) and size."""
        launch = core().load(source, context)
        row = self.rows.setdefault(source.text, Row(source.text.partition("\n")[0].removeprefix("// ")))

        def timed(*arguments):
            start = time.perf_counter()
            launch(*arguments)
            row.seconds += time.perf_counter() - start
            row.launches += 1

        return timed

    def table(self):
        """Returns a line for each kernel, the most expensive first: seconds, launches, what it computes."""
        rows = sorted(self.rows.values(), key=lambda row: -row.seconds)
        return "\n".join(f"{row.seconds:.6f} s {row.launches:6d} {row.kernel}" for row in rows)


def core():
    """Returns core's generator of C++."""
    from litz.targets.cpp.codegen import CppCodegen  # here, as `litz plugins` and the like need no compiler

    return CppCodegen()
