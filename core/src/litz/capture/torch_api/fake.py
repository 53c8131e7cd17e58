"""Fake tensors, and the modes that make them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._guards import TracingContext


@contextlib.contextmanager
def real_mode() -> Iterator[None]:
    """Leave the tracing modes that AOTAutograd holds while it calls a compiler: torch runs on real tensors inside,
    with no autograd and no inference tensors, and makes tensors on the CPU where it is given no device, whatever device
    the user has made the default. Fake tensors still work: they carry their own mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    # A default device is such a mode. Without one, torch's calls need not go through Python.
    modes = torch._C._len_torch_function_stack()
    device = torch.device("cpu") if modes else contextlib.nullcontext()
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), device:
        yield


def is_fake(value: object) -> bool:
    """Returns whether `value` is a fake tensor, which has metadata and no storage."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


def fake_mode_of(values: Iterable[object]) -> Any | None:
    """Returns the FakeTensorMode of the first fake tensor among `values`, else the mode of the current trace, else
    None."""
    for value in values:
        if is_fake(value):
            return value.fake_mode  # type: ignore[attr-defined]
    context = TracingContext.try_get()
    return None if context is None else context.fake_mode


@contextlib.contextmanager
def _entered(mode: Any) -> Iterator[None]:
    """Enter a FakeTensorMode as dynamo and AOTAutograd do. Without the Python dispatcher some ops ask for sizes as
    ints, which makes constants of symbolic sizes: padding by a constant, which torch's fused attention calls."""
    from torch._dispatch.python import enable_python_dispatcher

    with mode, enable_python_dispatcher():
        yield


def fake_mode_around(values: Iterable[object]) -> contextlib.AbstractContextManager[Any]:
    """Returns the FakeTensorMode of the first fake tensor among `values`, to be entered; a context that does nothing if
    no value is fake."""
    modes = (_entered(value.fake_mode) for value in values if is_fake(value))  # type: ignore[attr-defined]
    return next(modes, contextlib.nullcontext())


def make_fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor with `tensor`'s geometry, all sizes static. mode: the FakeTensorMode that it belongs to."""
    return mode.from_tensor(tensor, static_shapes=True)


def missing_value(node: torch.fx.Node, mode: Any | None) -> Any | None:
    """The fake value of a node that the partitioner adds without one, or None if it is not such a node: the random
    ops of a checkpointed region, which save the generator's state in the forward and draw from it in the backward."""
    # Where the op is among the arguments. The last of them takes a generator of its own as `rng_state`.
    places = {"run_and_save_rng_state": 0, "run_with_rng_state": 1, "graphsafe_run_with_rng_state": 0}
    name = getattr(node.target, "__name__", "")
    if mode is None or name not in places:
        return None
    saving = name == "run_and_save_rng_state"
    op: Any = node.args[places[name]]
    args = node.args[places[name] + 1 :]
    kwargs = {key: value for key, value in node.kwargs.items() if key != "rng_state"}
    values = torch.fx.node.map_arg((args, kwargs), lambda argument: argument.meta["val"])
    with _entered(mode):
        drawn = op(*values[0], **values[1])
    if not saving:
        return drawn
    states = [user for user in node.users if user.args[1] == 0 and "val" in user.meta]
    for user in states:
        # Its size is a constant, of which fakes made under dynamic shapes make a symbol that no input holds.
        state = user.meta["val"]
        with _entered(mode):
            user.meta["val"] = torch.empty([hint_of(n) for n in state.shape], dtype=state.dtype, device=state.device)
    return (states[0].meta["val"] if states else None, drawn)


def hint_of(size: Any) -> int:
    """Returns the value that a size had when it was traced."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def hint_or_none(size: Any) -> Any:
    """Returns the value that a size had when it was traced; None for a size that depends on data."""
    return hint_of(size) if not isinstance(size, torch.SymInt) or size.node.has_hint() else None
