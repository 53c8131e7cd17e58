"""Triton kernels that a user's function launches: torch keeps them in a table and hands graphs their numbers.

In: the numbers that a node `triton_kernel_wrapper_mutation` or `triton_kernel_wrapper_functional` has. Out: the kernel,
its configurations, and what of its arguments is constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class UserKernel:
    """A kernel as torch has it. number, constants_number: in torch's tables. kernel: a Triton JITFunction, or an
    Autotuner of one. constants: values that graphs cannot hold, and those that are numbers, by parameter."""

    number: int
    constants_number: int
    kernel: Any
    constants: Mapping[str, Any]

    @cached_property
    def function(self) -> Any:
        """Returns the JITFunction, without the Autotuner around it."""
        return self.kernel.fn if self.is_tuned else self.kernel

    @property
    def is_tuned(self) -> bool:
        """Returns whether the kernel is an Autotuner, with several configurations."""
        return hasattr(self.kernel, "configs")

    @property
    def configs(self) -> Sequence[Any]:
        """Returns the Triton Configs of a tuned kernel, one per grid; () for a kernel that is not tuned."""
        return tuple(self.kernel.configs) if self.is_tuned else ()

    @property
    def key(self) -> tuple[str, ...]:
        """Returns the names of the parameters by whose values a configuration is chosen."""
        return tuple(getattr(self.kernel, "keys", ()) or ())

    @property
    def parameters(self) -> tuple[str, ...]:
        """Returns the names of the kernel's parameters, in order."""
        return tuple(self.function.arg_names)

    @property
    def constexprs(self) -> frozenset[str]:
        """Returns the names of the parameters that are `tl.constexpr`."""
        return frozenset(item.name for item in self.function.params if item.is_constexpr)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Returns the default values of those parameters that have one, by name."""
        return {item.name: item.default for item in self.function.params if item.has_default}

    @property
    def name(self) -> str:
        """Returns the name of the kernel's function."""
        return str(self.function.__name__)

    @property
    def text(self) -> str:
        """Returns the kernel's source, from `def` on."""
        return str(self.function.src)


def user_kernel(number: int, constants_number: int) -> UserKernel:
    """Returns the kernel at `number` in torch's table of kernels, with the constants at `constants_number`. Errors:
    AssertionError or KeyError where this process's tables have none of this number."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table

    return UserKernel(number, constants_number, table.get_kernel(number), table.get_constant_args(constants_number))


def kernel_writes(number: int, constants_number: int, given: Mapping[str, Any], descriptors: Any) -> tuple[str, ...]:
    """Returns the names of the parameters whose tensors the kernel writes, as far as torch can tell: all tensors where
    it cannot. given: the fake values of the parameters, by name."""
    from torch._higher_order_ops.triton_kernel_wrap import get_mutated_tensors

    return tuple(get_mutated_tensors(number, constants_number, dict(given), descriptors))


def launch_user_kernel(
    kernel: Any, grids: Sequence[Sequence[int]], given: Mapping[str, Any], descriptors: Mapping[str, Any]
) -> None:
    """Launch by Triton itself, on the current stream. grids: one per configuration. given: tensors and numbers by
    parameter. descriptors: those of them that are tensors which the kernel takes by a descriptor, as torch has it."""
    given = {name: _described(value, descriptors.get(name)) for name, value in given.items()}
    grid: Any = tuple(grids[0])
    if len(grids) > 1:
        wanted = [(config.kwargs, tuple(own)) for config, own in zip(kernel.configs, grids, strict=True)]

        def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
            return next(own for config, own in wanted if all(meta.get(name) == config[name] for name in config))

    # By position as far as it goes: Triton's hooks of an Autotuner look for positional arguments.
    names, placed = list(kernel.arg_names), []
    while names and names[0] in given:
        placed.append(given.pop(names.pop(0)))
    kernel[grid](*placed, **given)


def _described(value: Any, descriptor: Any) -> Any:
    if descriptor is None:
        return value
    kind, data = descriptor
    if kind == "stable":
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(value, list(data[0]))
    from triton.tools import experimental_descriptor

    sizes, block, element = data
    make = getattr(experimental_descriptor, f"create_{len(sizes)}d_tma_descriptor")
    return make(value.data_ptr(), *sizes, *block, element)


def launching_ops(functional: Any, in_place: Any) -> dict[Any, Any]:
    """Returns what is given by the higher-order op that it is for: the one that returns what the kernel writes, and the
    one that writes in place."""
    from torch._higher_order_ops import triton_kernel_wrap as ops

    return {ops.triton_kernel_wrapper_functional: functional, ops.triton_kernel_wrapper_mutation: in_place}
