"""One model of the zoo as a step: in, a model, a task, a peer and a mode; out, functions without arguments.

A step returns what float64 judges: the outputs in inference, the loss and all gradients in training. There is no
optimizer's step: it is the same for everyone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.zoo import Model

Step = Callable[[], list[Tensor]]
TASKS = ("inference", "training", "small")
"""small: inference of a batch of one."""
MODES = ("default", "reduce-overhead", "max-autotune")
PEERS = ("eager", "inductor", "litz")


@dataclass
class Subject:
    """A model on its device, with what it is called with. type: what it computes in, in words."""

    model: Model
    task: str
    module: nn.Module
    inputs: dict[str, Any]
    autocast: bool
    device: torch.device

    @property
    def type(self) -> str:
        dtypes = {p.dtype for p in tree_leaves((list(self.module.parameters()), self.inputs)) if _is_float(p)}
        names = "/".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"autocast from {names}" if self.autocast else names

    @property
    def bytes(self) -> int:
        """Of parameters, buffers and inputs."""
        tensors = [*self.module.parameters(), *self.module.buffers(), *tree_leaves(self.inputs)]
        return sum(t.nbytes for t in tensors if isinstance(t, Tensor))


def why_not(model: Model, task: str) -> str:
    """Why a model has no such task; '' where it has."""
    return "" if task != "training" or model.targets is not None else "not trained"


def make_subject(model: Model, task: str, device: torch.device, small: bool, batch: int = 0) -> Subject:
    """The model, ready to run. small: in the size for a CPU, with a batch of 2. batch: another one, if not 0."""
    torch.manual_seed(0)
    training = task == "training"
    size = batch or (1 if task == "small" else 2 if small else model.training if training else model.batch)
    half, autocast = model.half and device.type == "cuda", model.autocast and training and device.type == "cuda"
    dtype = torch.bfloat16 if half and not autocast else torch.float32
    module = model.make(small).to(device, dtype).train(training)
    inputs = model.inputs(size, small)
    if training and model.targets is not None:
        inputs |= model.targets(size, small)
    inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    return Subject(model, task, module, cast(inputs, dtype), autocast, device)


def make_step(subject: Subject, run: Callable[..., Any]) -> Step:
    """A step of `run`, which is the module or what a compiler made of it."""
    module, inputs = subject.module, subject.inputs
    half = torch.autocast(subject.device.type, torch.bfloat16) if subject.autocast else contextlib.nullcontext()

    def infer() -> list[Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return floats(run(**inputs))

    def train() -> list[Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        module.zero_grad(set_to_none=True)
        with half:
            loss = run(**inputs)["loss"]
        loss.backward()
        return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    return train if subject.task == "training" else infer


def make_peer_step(subject: Subject, peer: str, mode: str) -> Step:
    """A peer's step; nothing is compiled before it runs."""
    if peer == "eager":
        return make_step(subject, subject.module)
    with subject_patches(subject.model):
        compiled = torch.compile(subject.module, backend=peer, mode=mode)
    return make_step(subject, compiled)


def subject_patches(model: Model) -> contextlib.AbstractContextManager[Any]:
    """dynamo's settings that a model needs, while it is compiled."""
    return torch._dynamo.config.patch(**model.patches)


def exact(subject: Subject) -> list[Tensor]:
    """What the step returns in float64, in eager mode."""
    module = copy.deepcopy(subject.module).double()
    if subject.model.judge is not None:
        subject.model.judge(module)
    wide = Subject(subject.model, subject.task, module, cast(subject.inputs, torch.float64), False, subject.device)
    return [tensor.detach() for tensor in make_step(wide, module)()]


def error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The norm of the difference of all tensors together, over that of what is expected."""
    if [t.shape for t in found] != [t.shape for t in expected]:
        raise ValueError(f"{len(found)} results, or their shapes, are not those of float64 ({len(expected)})")
    pairs = zip(found, expected, strict=True)
    wrong = sum(float((a.double() - b).square().sum()) for a, b in pairs)
    return (wrong / max(sum(float(b.square().sum()) for b in expected), 1e-300)) ** 0.5


def floats(outputs: Any) -> list[Tensor]:
    """The tensors of real numbers among a model's outputs."""
    return [leaf for leaf in tree_leaves(dict(outputs)) if _is_float(leaf)]


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: tree_map(lambda v: v.to(dtype) if _is_float(v) else v, value) for name, value in inputs.items()}


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
