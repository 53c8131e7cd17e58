"""What AOTAutograd's cache finds an entry by, for litz: in, a dynamo graph and its inputs; out, a key.

torch's own key has everything that TorchInductor depends on: a hash over the sources of torch and of Triton, the
settings of TorchInductor, what a C++ compiler makes of a probe. None of that changes what litz makes, which has a key
of its own (`aot_cache.MARK`), and it is a good part of the time that a second process takes. What AOTAutograd itself
depends on is the same in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import traceback
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .custom_ops import is_custom

_HELPERS = (
    *("AOTAutogradCachePickler", "sanitize_gm_for_cache", "check_node_safe", "_collect_context_fn_hashes"),
    "_get_custom_estimator_solver_uuids",
)
"""What `own_key` takes from torch (2.11 to 2.13)."""
_memory_budget = getattr(traceback, "_get_memory_budget_annotation", lambda node: None)
"""How much memory the activations of a node's region may take; torch 2.11 has no such regions."""


def is_spelled_out(module: Any) -> bool:
    """Returns whether `own_key` can say what a graph is, as it cannot of one that runs a user's Triton kernel."""
    from torch._functorch._aot_autograd import autograd_cache

    known = all(hasattr(autograd_cache, name) for name in _HELPERS)
    return known and isinstance(module, torch.fx.GraphModule) and not any(map(_runs_triton, _nodes(module)))


def own_key(
    module: torch.fx.GraphModule, example_inputs: Any, aot_config: Any, *rest: Any, **more: Any
) -> tuple[str, list[str]]:
    """The key of a graph, by torch's convention with lines for its log. What cannot be kept raises torch's
    BypassAOTAutogradCache."""
    from torch._functorch import config
    from torch._functorch._aot_autograd import autograd_cache as torchs

    with torchs.sanitize_gm_for_cache(module):
        for node in _nodes(module):
            torchs.check_node_safe(node)
        state = {
            "torch": (torch.__version__, torch.version.git_version),
            "graph": module,
            "inputs": list(example_inputs),
            "config": aot_config,
            "settings": config.save_config(),
            "wrapped": [node.meta["user_cache_hash"] for node in _nodes(module) if node.meta.get("is_wrapped")],
            "checkpoints": torchs._collect_context_fn_hashes(module),
            "memory": torchs._get_custom_estimator_solver_uuids(config),
            "budget": _memory_budget(next(iter(module.graph.nodes))),
            "state": _process_state(),
        }
        data = torchs.AOTAutogradCachePickler(module).dumps(state)
    return f"a{hashlib.sha256(data).hexdigest()}", []


def _process_state() -> tuple[Any, ...]:
    """Returns what a trace depends on besides the graph: modes and settings of this process and thread."""
    accelerator = torch.accelerator.is_available()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [
            (device, str(torch.get_autocast_dtype(device)))
            for device in torch._C._autocast_supported_devices()
            if torch.is_autocast_enabled(device)
        ],
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.accelerator.current_device_index() if accelerator else None,
    )


def check_torchs(module: torch.fx.GraphModule, inputs: Any) -> None:
    """Raises torch's BypassAOTAutogradCache where the versions of torch and litz do not say what a trace gives: for a
    first call with fake tensors, for inputs of a tensor subclass, and for ops and functions that do not come with torch
    (which torch itself takes for unchanged)."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    context = TracingContext.try_get()
    if context is not None and context.fakify_first_call:
        raise BypassAOTAutogradCache("the first call is of fake tensors")
    for value in inputs:
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
            raise BypassAOTAutogradCache(f"an input is a {type(value).__name__}, whose rules may have changed")
    for node in _nodes(module):
        if is_custom(node.target):  # its Python rules have no version
            raise BypassAOTAutogradCache(f"{node.target} is not torch's: what it does may have changed")


def _nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _runs_triton(node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", "")
    return isinstance(node.target, torch._ops.HigherOrderOperator) and name.startswith("triton_kernel_wrapper")


def captured_devices(module: torch.fx.GraphModule) -> set[torch.device]:
    """Returns the devices that a dynamo graph names or has values on."""
    nodes = _nodes(module)
    values = [(node.args, node.kwargs, node.meta.get("example_value", node.meta.get("val"))) for node in nodes]
    return set(devices_in(values))


def devices_in(value: Any) -> Iterator[torch.device]:
    """Yields the devices of tensors, and those that are named, in nested values."""
    if isinstance(value, (torch.Tensor, torch.device)):
        yield value.device if isinstance(value, torch.Tensor) else value
    elif isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from devices_in(item)


def rank() -> tuple[int, int] | None:
    """Returns the process's number in the job and the number of processes; None outside of torch.distributed."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def current_shape_env() -> Any | None:
    """Returns the shape environment of what is being compiled; None outside of a trace."""
    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context.fake_mode.shape_env
