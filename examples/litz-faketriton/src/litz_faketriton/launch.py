"""Build and launch: what differs from CUDA. In: a `KernelSource` of litz's Triton generator. Out: a function that takes
addresses and sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from litz.errors import CodegenError
from litz.targets.triton.codegen import TritonCodegen
from litz.targets.triton.tile_shape import warps_of
from litz_plugins import CodegenContext, KernelSource

TYPES = {
    "*fp64": torch.float64,
    "*fp32": torch.float32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*i16": torch.int16,
    "*i8": torch.int8,
    "*u8": torch.uint8,
    "*i1": torch.bool,
}
"""The types of elements by Triton's name of a pointer to them."""


class FakeTritonCodegen(TritonCodegen):
    """litz's generator of Triton text. Only `load` and `prepare` are the vendor's own."""

    def prepare(self, options):
        """Starts nothing: litz's compiling processes are for CUDA."""

    def load(self, source: KernelSource, context: CodegenContext) -> Callable[..., None]:
        """The function that launches a kernel. A vendor compiles here, with Triton's own backend for its device:
        `source.text` and `source.symbol`, `settings["pointers"]` and `settings["sizes"]` as the signature, and
        `warps_of(...)` as `num_warps`; `context.cache.build` keeps the binary. The interpreter compiles nothing."""
        return launcher(source, context.target.warp, context.target.threads)


def launcher(source: KernelSource, warp: int, threads: int) -> Callable[..., None]:
    """The function that launches a kernel on a device with so many threads a warp, and so many in all."""
    from litz_testing.triton_interpreter import interpret_source

    warps = warps_of(source.settings["num_warps"], warp)
    unknown = {*source.settings["pointers"]} - TYPES.keys()
    if unknown or warps > threads // warp:
        raise CodegenError(source.name, f"{warps} warps, pointers {unknown}", device="Fake Triton 64")
    count = len(source.settings["pointers"])

    def launch(*arguments: int) -> None:
        # Kernels take addresses; the interpreter takes tensors, and computes with their addresses alone.
        tensors = [at(*each) for each in zip(arguments[:count], source.settings["pointers"], strict=True)]
        interpret_source(source, tensors, arguments[count:])

    return launch


def at(address: int, pointer: str) -> torch.Tensor:
    """A tensor whose first element lies at an address; the kernel knows how many follow."""
    dtype = TYPES[pointer]
    memory = (ctypes.c_char * dtype.itemsize).from_address(address) if address else bytearray(dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype)


def allocate(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The vendor's allocator, as the target names it: called by the wrapper for each of its buffers."""
    return torch.empty_strided(size, stride, dtype=dtype)
