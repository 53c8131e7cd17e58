"""A made-up GPU vendor that runs litz's Triton kernels: in Triton's interpreter, with the CPU's memory as the GPU's.

A vendor writes four things: what the device is (`describe`), how a kernel is built and launched (`launch.py`), how
kernels get into packages (`packed.py`), and which of litz's templates its device is good at (`products`). Texts,
tilings and templates come from litz.
"""

from __future__ import annotations

from litz_plugins import Exporter, Share, Target, TargetSpec, TemplateSpec, hookimpl


@hookimpl
def litz_register_targets(options):
    from .launch import FakeTritonCodegen

    # A real vendor names its own type of device here. A type of torch's needs a dist of C++; the CPU has tensors.
    return [TargetSpec("cpu", describe, FakeTritonCodegen())]


def describe(device, options):
    """Four units of 64 threads a warp, whose matrix units a library written in loops does not reach."""
    return Target(
        "cpu",
        name="Fake Triton 64",
        source="the vendor's datasheet",
        units=4,
        bandwidth=1e6,
        launch_us=2.0,
        vector={"fp32": 1e7, "fp16": 1e7, "bf16": 1e7},
        matrix={"fp32": 1e8, "fp16": 2e8, "bf16": 2e8},
        shares={**Target("cpu").shares, "matmul": Share(0.02, 0.01, 0.005)},
        shared_bytes=64 << 10,
        registers=64 << 10,
        threads=2048,
        warp=64,
        # No "finish", "recording" or "user_kernels": this vendor's launch does not count programs, nor record calls.
        abilities=frozenset({"blocks", "one_walk", "products"}),
        allocator="litz_faketriton.launch:allocate",
    )


@hookimpl
def litz_select_exporter(target):
    """Packages hold this vendor's kernels, and no other's."""
    return Exporter("litz_faketriton.packed") if target.plugin == "faketriton" else None


@hookimpl
def litz_register_templates(options):
    return [TemplateSpec("faketriton_products", ("mm", "bmm", "addmm"), products)]


def products(operation, context):
    """litz's kernels of products for this vendor's device, with what follows the product in the same kernel."""
    from litz_contractions.api import offer_gemm

    return offer_gemm(operation, context, count=2).choices if context.target.name == "Fake Triton 64" else ()
