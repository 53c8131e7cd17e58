"""Kernels in packages (`litz_aot.compile`), as `litz_plugins.Exporter` asks of a module. It imports no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from litz_plugins import CodegenContext, KernelSource, Target

from . import describe


def here() -> Target:
    """The device of this process. A vendor asks the driver, and gives an `assumed` target where there is none."""
    return describe("cpu", None)


def made_for(target: Target) -> str:
    """What binaries depend on: a vendor's architecture."""
    return f"{target.name}, warps of {target.warp}"


def pack(source: KernelSource, context: CodegenContext, folder: Path, common: Path) -> dict[str, Any]:
    """Writes a kernel's file. A vendor writes its binary, and what launches kernels into `common`."""
    (folder / "kernel.py").write_text(source.text, encoding="utf-8")
    return {"warp": context.target.warp, "threads": context.target.threads}


def unpack(source: KernelSource, files: Mapping[str, Path], data: Mapping[str, Any]) -> Callable[..., None]:
    """The function that launches a kernel."""
    from .launch import launcher

    text = files["kernel.py"].read_text(encoding="utf-8")
    return launcher(replace(source, text=text), data["warp"], data["threads"])
