"""Ops that somebody else than torch defines, and the Python modules that define them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._library import custom_ops, simple_registry

TORCHS = frozenset({"aten", "prims", "prim", "rngprims"})
"""Namespaces of ops whose rules come with torch, so that its version says what they are."""


def is_custom(target: Any) -> bool:
    """Returns whether `target` is an op that is registered by someone else than torch."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace not in TORCHS
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.split("::")[0] not in TORCHS
    return False


def defining_module(target: Any) -> str:
    """Returns the module whose import defines a custom op, as far as torch knows; '' if torch does not, or if the op is
    defined in a script."""
    return next((name for name in _modules(target) if name and name.partition(".")[0] not in ("__main__", "torch")), "")


def _modules(target: Any) -> Iterator[str]:
    """Yields the modules that torch keeps of an op: those of the function of `custom_op`, of the function that says the
    results' shapes and of Python kernels, and the module that a C++ library names."""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    overload = target if isinstance(target, torch._ops.OpOverload) else getattr(packet, packet.overloads()[0])
    name = packet._qualified_op_name
    definition = custom_ops.OPDEFS.get(name)
    if definition is not None:
        yield definition._init_fn.__module__
    stub = torch._C._dispatch_pystub(name, overload._schema.overload_name)
    if stub is not None:
        yield stub[0]
    fake = simple_registry.singleton.find(overload.name()).fake_impl.kernel
    if fake is not None:
        yield getattr(fake.func, "__module__", "") or ""
    yield from (getattr(kernel, "__module__", "") or "" for kernel in overload.py_kernels.values())
