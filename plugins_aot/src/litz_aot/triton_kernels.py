"""Kernels in Triton in a package. See `litz_plugins.Exporter` for what such a module has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from litz.target import target_of
from litz.targets.triton import build as triton_build
from litz.targets.triton import native_launch
from litz.targets.triton.build import Binary
from litz.targets.triton.compile import Variant
from litz_plugins import CodegenContext, KernelSource, Target


def here() -> Target:
    """Returns this machine's present CUDA device."""
    return target_of("cuda")


def made_for(target: Target) -> str:
    """Returns the compute capability as text, such as "sm_90"."""
    return f"sm_{target.capability}"


def pack(source: KernelSource, context: CodegenContext, folder: Path, common: Path) -> dict[str, Any]:
    """Writes the kernel's binaries into `folder`, and the module that launches all kernels into `common`; a process of
    another Python does without that module. Returns the kernel's data for the package."""
    native_launch.put_into(common, getattr(context.options, "cpp_compiler", None), context.cache)
    capability = divmod(context.target.capability, 10)
    expected = triton_build.expected_variant(source, context.program.hint).number
    return packed(source, folder, lambda v: triton_build.build(source, capability, context.cache, v), expected)


def packed(source: KernelSource, folder: Path, binary: Callable[[Variant], Binary], expected: int) -> dict[str, Any]:
    """Writes a binary for every variant that the launcher may ask for into `folder`. Returns what `unpack` has to know.
    expected: the number of the likely variant."""
    variants = {}
    for variant in triton_build.variants(source):
        built = binary(variant)
        (folder / f"{variant.number}.cubin").write_bytes(built.cubin)
        variants[str(variant.number)] = {k: v for k, v in vars(built).items() if k != "cubin"}
    return {"variants": variants, "expected": expected}


def unpack(source: KernelSource, files: Mapping[str, Path], data: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the function that launches a kernel from its cubins; each is loaded when it is first needed."""
    places = {number: files[f"{number}.cubin"] for number in data["variants"]}

    def binary(variant: Variant) -> Binary:
        number = str(variant.number)
        return Binary(places[number].read_bytes(), **data["variants"][number])

    expected = Variant.of(data["expected"])
    return triton_build.Launcher(source, 0, binary, expected, lambda: native_launch.load_from(files)).function
