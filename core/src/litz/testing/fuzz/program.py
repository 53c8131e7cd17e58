"""FuzzProgram: inputs, statements in order, outputs. Plain text, so that it can be printed, cut and run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .inputs import InputSpec

NAME = re.compile(r"\b[xv]\d+\b")
NAMES: Mapping[str, Any] = {"torch": torch, "math": math, "nan": math.nan, "inf": math.inf}
"""What a statement may name beside variables."""


@dataclass(frozen=True)
class Statement:
    """One line: `target = text`, or `text` alone if it works in place (`writes` is then the name of what it changes) or
    is there for what it refuses (no target then, and nothing written).

    exact: the result may jump where an operand differs by a rounding (floor, ==, argmax, a cast to integers), so that
        operands must be free of rounding errors. rough: the result is rounded even where it looks exact. unsized: the
        result's sizes come from data.
    """

    target: str
    text: str
    writes: str = ""
    exact: bool = False
    rough: bool = False
    unsized: bool = False

    @property
    def line(self) -> str:
        return f"{self.target} = {self.text}" if self.target else self.text

    @property
    def uses(self) -> frozenset[str]:
        """The names in the text."""
        return frozenset(NAME.findall(self.text))


@dataclass(frozen=True)
class FuzzProgram:
    """A random program. dynamic: compiled for symbolic sizes. `sizes`: other extents to run it with as well.

    by_dynamo: captured by torch.compile, as sizes that come from data and what is checked of them have to be; else by
    AOTAutograd alone, which is faster. raises: eager refuses the last statement.
    """

    inputs: tuple[InputSpec, ...]
    statements: tuple[Statement, ...] = ()
    outputs: tuple[str, ...] = ()
    dynamic: bool = False
    grad: bool = False
    sizes: tuple[tuple[int, int], ...] = ()
    label: str = ""
    by_dynamo: bool = False
    raises: bool = False

    @property
    def other_data(self) -> tuple[InputSpec, ...] | None:
        """Inputs of the same sizes with other values, for the second run of a program whose sizes come from data."""
        return tuple(replace(spec, seed=spec.seed + 1) for spec in self.inputs) if self.by_dynamo else None

    @property
    def resized_inputs(self) -> tuple[InputSpec, ...] | None:
        """The inputs for the second run of a dynamic program."""
        mapping = dict(self.sizes)
        return tuple(spec.resized(mapping) for spec in self.inputs) if mapping else None

    def source(self) -> str:
        """`def program(x0, x1): ...`"""
        names = ", ".join(f"x{n}" for n in range(len(self.inputs)))
        lines = [f"    {statement.line}" for statement in self.statements]
        returned = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([f"def program({names}):", *lines, f"    return ({returned})", ""])

    def function(self) -> Callable[..., Any]:
        """The program as a Python function."""
        names = dict(NAMES)
        exec(self.source(), names)
        function: Callable[..., Any] = names["program"]
        return function

    def without_dead_code(self) -> FuzzProgram:
        """Less the statements and trailing inputs that no output and no write to an input hangs on."""
        # A view may be written through: what aliases what is not known here, so every write counts as needed if
        # anything it could alias is. Writes are kept, and so is what they use.
        needed = set(self.outputs)
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if not statement.target or statement.target in needed:
                needed |= statement.uses
                kept.append(statement)
        return replace(self, statements=tuple(reversed(kept)))

    def script(self, reason: str = "") -> str:
        """A stand-alone script that compiles the program and compares with eager."""
        comment = "".join(f"# {line}\n" for line in [self.label, *reason.splitlines()] if line)
        makers = "".join(f"    x{n} = {spec.text}\n" for n, spec in enumerate(self.inputs))
        names = ", ".join(f"x{n}" for n in range(len(self.inputs)))
        grads = "".join(
            f"    x{n}.requires_grad_()\n" for n, spec in enumerate(self.inputs) if self.grad and is_trained(spec)
        )
        gradient = _GRADIENT if self.grad else ""
        values = "[*outputs, *gradients(outputs, inputs)]" if self.grad else "[*outputs, *inputs]"
        if self.by_dynamo:
            return f"{comment}{_HEAD}{self.source()}\n\ndef make_inputs():\n{makers}    return [{names}]\n\n\n{_TRIED}"
        return (
            f"{comment}{_HEAD}{self.source()}\n\n"
            f"def make_inputs():\n{makers}{grads}    return [{names}]\n\n\n{gradient}"
            "results = []\n"
            f'for function in (program, torch.compile(program, backend="litz", dynamic={self.dynamic})):\n'
            "    inputs = make_inputs()\n    outputs = function(*inputs)\n"
            f"    results.append({values})\n"
            "for number, (eager, litz) in enumerate(zip(*results)):\n"
            '    print("value", number, "eager", eager, "litz", litz)\n'
            "for eager, litz in zip(*results):\n"
            "    torch.testing.assert_close(litz, eager, equal_nan=True)\n"
        )


_HEAD = "import math\n\nimport torch\nfrom torch import inf, nan\n\n\n"
_TRIED = """\
torch._dynamo.config.capture_dynamic_output_shape_ops = torch._dynamo.config.capture_scalar_outputs = True
for function in (program, torch.compile(program, backend="litz")):
    try:
        print(function(*make_inputs()))
    except Exception as error:
        print(type(error).__name__, str(error)[:300])
"""
_GRADIENT = """\
def gradients(outputs, inputs):
    outputs = [o for o in outputs if o.requires_grad]
    inputs = [x for x in inputs if x.requires_grad]
    weights = [(torch.arange(o.numel()).reshape(o.shape) % 5 - 2).to(o.dtype) for o in outputs]
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs)]


"""


def is_trained(spec: InputSpec) -> bool:
    """Whether the input wants a gradient in a program with `grad`."""
    return spec.dtype.is_floating_point and not (spec.alias or spec.expanded or spec.windows)
