"""FuzzProgram: inputs, statements in order, outputs. Plain text, so that it can be printed, cut and run."""

from __future__ import annotations

import hashlib
import linecache
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .inputs import InputSpec, in_one_memory, in_own_memory
from .regions import FUNCTIONS, source_of

NAME = re.compile(r"\b[xv]\d+\b")
NAMES: Mapping[str, Any] = {"torch": torch, "math": math, "nan": math.nan, "inf": math.inf, **FUNCTIONS}
"""The names that a statement may use beside variables."""


@dataclass(frozen=True)
class Statement:
    """One line: `target = text`, or `text` alone if it works in place (`writes` is then the name of what it changes) or
    is there for what it refuses (no target then, and nothing written).

    exact: the result may jump where an operand differs by a rounding (floor, ==, argmax, a cast to integers), so that
        operands must be free of rounding errors. rough: the result is rounded even where it looks exact. unsized: the
        result's sizes come from data. centred: the op subtracts a mean, so that the result may be much smaller than
        what was rounded on the way. deep: several ops one after another, none of which compares, so that what the first
        rounds may grow in the others.
    """

    target: str
    text: str
    writes: str = ""
    exact: bool = False
    rough: bool = False
    unsized: bool = False
    centred: bool = False
    deep: bool = False

    @property
    def line(self) -> str:
        """Returns the statement as a line of Python."""
        return f"{self.target} = {self.text}" if self.target else self.text

    @property
    def uses(self) -> frozenset[str]:
        """Returns the names in the text."""
        return frozenset(NAME.findall(self.text))


@dataclass(frozen=True)
class FuzzProgram:
    """A random program. dynamic: compiled for symbolic sizes. `sizes`: other extents to run it with as well.

    by_dynamo: captured by torch.compile, as sizes that come from data and what is checked of them have to be; else by
    AOTAutograd alone, which is faster. raises: eager refuses the last statement. shift: the program writes an input and
    runs with inputs that share memory, that many elements apart, and with inputs that do not. together: several threads
    call it at once, with large inputs. nests: the reductions of its Loops are nested (`owning.nested`); these Loops are
    what is interpreted, and compiled.
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
    shift: int | None = None
    together: bool = False
    nests: bool = False

    @property
    def other_inputs(self) -> dict[str, tuple[InputSpec, ...]]:
        """Inputs to run the program with as well, once it is compiled for its own, by what is other: the values, where
        sizes come from them; the extents; that inputs have memory in common. None where eager refuses the program."""
        found: dict[str, tuple[InputSpec, ...]] = {}
        if self.raises:
            return found
        if self.by_dynamo:
            found["other data"] = tuple(replace(spec, seed=spec.seed + 1) for spec in self.inputs)
        if self.sizes:
            found["second sizes"] = tuple(spec.resized(dict(self.sizes)) for spec in self.inputs)
        if self.shift is not None:
            own = in_own_memory(self.inputs)
            found["shared memory"], found["own memory"] = in_one_memory(own, self.shift), own
            if own != self.inputs:
                found["memory shared elsewhere"] = in_one_memory(own, self.shift + 1)
        return {what: specs for what, specs in found.items() if specs != self.inputs}

    def source(self) -> str:
        """Returns the program as Python text, `def program(x0, x1): ...`."""
        names = ", ".join(f"x{n}" for n in range(len(self.inputs)))
        lines = [f"    {statement.line}" for statement in self.statements]
        returned = "".join(f"{name}, " for name in self.outputs)
        return "\n".join([f"def program({names}):", *lines, f"    return ({returned})", ""])

    def function(self) -> Callable[..., Any]:
        """Returns the program as a Python function whose source Python can look up. Dynamo puts a function without
        source into one of its own, which all programs would share and which dynamo compiles only a few times."""
        names, source = dict(NAMES), self.source()
        file = f"<fuzz program {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
        function: Callable[..., Any] = names["program"]
        return function

    def without_dead_code(self) -> FuzzProgram:
        """Returns the program without statements and trailing inputs that no output and no write depends on."""
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
        """Returns a stand-alone script that compiles the program and compares with eager."""
        comment = "".join(f"# {line}\n" for line in [self.label, *reason.splitlines()] if line)
        calls = {"make_inputs": self.inputs}
        calls |= {f"make_{what.replace(' ', '_')}": specs for what, specs in self.other_inputs.items()}
        head = f"{comment}{_HEAD}{source_of(self.source())}{self.source()}\n\n" + "".join(
            self._maker(name, calls[name]) for name in calls
        )
        compiled = f'torch.compile(program, backend="litz", dynamic={self.dynamic})'
        functions, makers = f"for function in (program, {compiled}):\n", f"    for make in ({', '.join(calls)},):\n"
        if self.by_dynamo and not self.grad:
            return f"{head}{_DATA}{functions}{makers}{_TRIED}"
        gradient = _GRADIENT if self.grad else ""
        values = "[*outputs, *gradients(outputs, inputs)]" if self.grad else "[*outputs, *inputs]"
        return (
            f"{head}{gradient}results = []\n{functions}    results.append([])\n{makers}"
            f"        inputs = make()\n        outputs = function(*inputs)\n        results[-1] += {values}\n"
            "for number, (eager, litz) in enumerate(zip(*results)):\n"
            '    print("value", number, "eager", eager, "litz", litz)\n'
            "for eager, litz in zip(*results):\n"
            "    torch.testing.assert_close(litz, eager, equal_nan=True)\n"
        )

    def _maker(self, name: str, specs: tuple[InputSpec, ...]) -> str:
        """A function that makes inputs, as text."""
        lines = [f"x{n} = {spec.text}" for n, spec in enumerate(specs)]
        if self.grad:
            lines += [f"x{n}.requires_grad_()" for n, spec in enumerate(specs) if is_trained(spec)]
        lines.append(f"return [{', '.join(f'x{n}' for n in range(len(specs)))}]")
        return "\n".join([f"def {name}():", *(f"    {line}" for line in lines), "", "", ""])


_HEAD = """\
import math
from typing import Any

import torch
import torch.nn.attention.flex_attention
import torch.utils.checkpoint
from torch import inf, nan


"""
_DATA = """\
torch._dynamo.config.capture_dynamic_output_shape_ops = torch._dynamo.config.capture_scalar_outputs = True
"""
_TRIED = """\
        inputs = make()
        try:
            print(make.__name__, function(*inputs), inputs)
        except Exception as error:
            print(make.__name__, type(error).__name__, str(error)[:300])
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
    """Returns whether the input wants a gradient in a program with `grad`."""
    return spec.dtype.is_floating_point and not (spec.alias or spec.expanded or spec.windows)
