"""Kernels alone: in, the kernels of a graph; out, for each a JSON file beside its source, and from that file its time.

The option `benchmark_kernels` has the files written, `litz bench-kernels` reads them. A file says what a launch needs:
the language, the settings, the shapes of the arguments, the options that the text was generated for. The source stays
the file that it is, so that it can be changed and timed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from litz.driver.compiler import Compiler, make_compiler
from litz.execution import ExecutionPlan
from litz.ir import Buffer, KernelCall, Program
from litz.options import Options
from litz.schedule.schedule import Kernel
from litz_plugins import COUNTERS, CodegenContext, KernelSource
from litz_plugins.errors import describe
from litz_tools.clock import row_seconds
from litz_tools.errors import KernelFileError
from litz_tools.kernel_files import FORMAT, VERSION, read_file


def kernel_data(
    kernel: Kernel | KernelCall, source: KernelSource, file: str, plan: ExecutionPlan, options: Options
) -> str:
    """Returns the JSON text for one kernel of a plan. file: the name of its source's file, in the same folder."""
    program, inplace = plan.program, getattr(kernel, "inplace", {})
    places = {name: number for number, name in enumerate(source.arguments) if isinstance(name, str)}
    estimate = plan.estimates.get(kernel.name)

    def argument(item: Any) -> Any:
        if item == COUNTERS:
            return {"zeros": source.settings["counters"]}
        if not isinstance(item, str):
            return program.hint(item)
        if inplace.get(item) in places:
            return {"buffer": item, "same_as": places[inplace[item]]}
        return buffer_data(program.buffers[item], program)

    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": kernel.name,
        "does": list(kernel.origins),
        "language": source.language,
        "source": file,
        "symbol": source.symbol,
        "settings": dict(source.settings),
        "device": str(kernel.device),
        "arguments": [argument(item) for item in source.arguments],
        "options": {row.name: value for row, value in options.changed() if row.affects_code and row.name != "mode"},
        "expected_us": None if estimate is None else estimate.us or None,  # 0 where the device has no figures
    }
    return json.dumps(data, indent=1)


def buffer_data(buffer: Buffer, program: Program) -> dict[str, Any]:
    """Returns the dtype, sizes, strides, elements and bytes of a buffer, for the hinted sizes."""
    layout, hint = buffer.layout, program.hint
    return {
        "buffer": buffer.name,
        "dtype": str(buffer.dtype).removeprefix("torch."),
        "size": [hint(size) for size in layout.size],
        "stride": [hint(stride) for stride in layout.stride],
        "elements": hint(layout.span),
        "bytes": hint(buffer.nbytes),
    }


# ------------------------------------------------------------------------------------------------------------- timing


@dataclass(frozen=True)
class KernelTime:
    """The time of a kernel. us: microseconds of a launch in a row of them, None where it does not run, and `problem`
    says why. bytes: of its tensors, each counted once. expected_us: the cost model's, where it has one."""

    name: str
    does: str
    us: float | None
    bytes: int
    expected_us: float | None
    problem: str = ""

    @property
    def gb_s(self) -> float | None:
        """Returns GB/s, 1e9 bytes a second, if each tensor is read or written once; None without a time."""
        return None if not self.us else self.bytes / self.us / 1e3


def time_kernel(path: Path, seconds: float = 0.2) -> KernelTime:
    """Builds the kernel of a file and times it on tensors of the right shapes: floats are random, all else is 0.

    Caches are as warm as a row of launches leaves them; counters are set to zero before each. Errors: KernelFileError;
    what a build raises.
    """
    data = read_file(path)
    device = torch.device(data["device"])
    compiler = make_compiler(None, data["options"])
    does = " + ".join(dict.fromkeys(data["does"]))
    target = compiler.target_of(device)
    us, problem = None, f"there is no {device.type.upper()} device here"
    if not target.assumed:
        guard = eval(target.guard, {"torch": torch}) if target.guard else nullcontext()  # text, as wrappers have it
        with guard:
            us, problem = _measured(data, path, device, seconds, compiler)
    size = sum(item.get("bytes", 0) for item in data["arguments"] if isinstance(item, dict))
    return KernelTime(data["name"], does, us, size, data["expected_us"], problem)


def _measured(
    data: Mapping[str, Any], path: Path, device: torch.device, seconds: float, compiler: Compiler
) -> tuple[float | None, str]:
    """Microseconds of a launch, or None and why there is none."""
    launch = build_kernel(data, path.parent, device, compiler)
    tensors = _tensors(data["arguments"], device)
    values = [item.data_ptr() if isinstance(item, torch.Tensor) else item for item in tensors]
    zeros = [item for item, given in zip(tensors, data["arguments"]) if isinstance(given, dict) and "zeros" in given]

    def run() -> None:
        for counters in zeros:
            counters.zero_()
        launch(*values)

    try:
        run()
        return row_seconds(run, compiler.target_of(device), seconds) * 1e6, ""
    except Exception as error:
        return None, describe(error)


def build_kernel(data: Mapping[str, Any], folder: Path, device: torch.device, compiler: Compiler) -> Callable[..., Any]:
    """Returns the launch function of a kernel's data, whose source is in the folder. Errors: KernelFileError; what a
    build raises."""
    path = folder / data["source"]
    spec = compiler.specs.get(device.type)
    if spec is None:
        raise KernelFileError(f"nothing here builds kernels for devices of type {device.type!r}", path=str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: what is no name of a file, or no text
        raise KernelFileError(f"its source is not there: {error}", path=str(path)) from error
    arguments = tuple(item if isinstance(item, int) else item.get("buffer", COUNTERS) for item in data["arguments"])
    source = KernelSource(data["name"], data["language"], text, data["symbol"], arguments, data["settings"])
    program = Program(data["name"], (), {}, (), ())
    context = CodegenContext(compiler.options, compiler.target_of(device), program, compiler.cache)
    loaded: Callable[..., Any] = spec.codegen.load(source, context)
    return loaded


def _tensors(arguments: Sequence[Any], device: torch.device) -> list[Any]:
    """A tensor for each argument that has memory, an int for each size."""
    own = [None if isinstance(item, dict) and "same_as" in item else _made(item, device) for item in arguments]
    return [own[item["same_as"]] if made is None else made for item, made in zip(arguments, own, strict=True)]


def _made(item: Any, device: torch.device) -> Any:
    if isinstance(item, int):
        return item
    if "zeros" in item:
        return torch.zeros(max(1, item["zeros"]), dtype=torch.int32, device=device)
    dtype: torch.dtype = getattr(torch, item["dtype"])
    values = torch.zeros(max(1, item["elements"]), dtype=dtype, device=device)
    if dtype.is_floating_point:
        values.copy_(torch.randn(values.shape, device=device))
    return values
