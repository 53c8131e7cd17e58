"""Reports of the size of a large training step, made without a compile: for the page and for what reads reports."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from litz.origins.operations import Frame
from litz.report import CompileReport, Step
from litz.schedule.implementations import ContractionRecord, Implementation
from litz_plugins import Decision, Estimate
from litz_tools.changes import Change
from litz_tools.effects import Effect
from litz_tools.pass_notes import PassNote

LAYERS, PER_LAYER, DECISIONS = 147, 17, 2500
_KINDS = ("kernel", "template", "kernel", "extern")


def _step(layer: int, at: int, number: int, timed: bool) -> Step:
    kind, node = _KINDS[at % 4], f"{('mul', 'addmm', 'gelu', 'bmm')[at % 4]}_{number}"
    nbytes = float(4096 * (1 + at))
    return Step(
        name=f"kernel{number}" if kind == "kernel" else f"op{number}",
        kind=kind,
        device="cuda:0",
        what=f"[64, {128 + at}] f32" if kind == "kernel" else f"aten.{node.partition('_')[0]}.default",
        fused=(f"loop{number}", f"loop{number}_b") if kind == "kernel" else (),
        origins=(node,),
        modules=(f"h.{layer}.mlp.fc{at % 2}",) if layer >= 0 else (),
        places=(f"/home/me/model.py:{40 + at}",),
        origin=f"h.{layer}.mlp.fc{at % 2} (model.py:{40 + at})" if layer >= 0 else "",
        reads=(f"buf{number - 1}",) if number else ("x",),
        writes=(f"buf{number}",),
        estimate=Estimate(2.0 + at, 1.0 + at, 4.0 + at, "memory-bound: <512 B> & more") if timed else None,
        flops=1e6 * at,
        bytes_read=nbytes,
        bytes_written=nbytes / 2,
    )


def large_report(timed: bool = True, name: str = "graph0_backward") -> CompileReport:
    """A backward of `LAYERS` equal layers with something before and after them: 2,504 steps, `DECISIONS` decisions."""
    places = [(-1, 0), (-1, 1), (-1, 2), *((n, at) for n in range(LAYERS) for at in range(PER_LAYER)), (-1, 3), (-1, 4)]
    steps = tuple(_step(layer, at, number, timed) for number, (layer, at) in enumerate(places))
    decisions = tuple(
        Decision(
            "schedule",
            f"loop{n % len(steps)} and loop{(n + 1) % len(steps)}",
            "fused" if n % 3 else "kept apart",
            f"saves a launch and {n} B of traffic" if n % 3 else f"different <ranges>, {n % 7} of them",
            (("apart", 3.0 + n), ("fused", 2.0 + n)),
            "core" if n % 5 else "autotune",
        )
        for n in range(DECISIONS)
    )
    ways = tuple(Implementation(f"triton mm {size}x64, <fast>", size / 8, "slower") for size in (16, 32, 64, 128))
    contractions = tuple(
        ContractionRecord(f"op{n}", "aten.addmm.default", "[64, 64] x [64, 64] f32", (f"addmm_{n}",), ways)
        for n, step in enumerate(steps)
        if step.kind == "template"
    )
    kernels = [step.name for step in steps if step.kind == "kernel"]
    removed = tuple(f"loop{n} = mul(<x>, {n})" for n in range(300))
    return CompileReport(
        name=name,
        kind="backward",
        device="cuda:0 (NVIDIA H200)",
        steps=steps,
        loops_before=1600,
        kernels_after=len(kernels),
        externs=Counter(step.what for step in steps if step.kind != "kernel"),
        decisions=decisions,
        contractions=contractions,
        memory_peak_bytes=3 << 30,
        memory_total_bytes=9 << 30,
        memory_held=tuple((1 << 20) * (100 + (n * 37) % 900) for n in range(len(steps))),
        stage_seconds={"lower": 1.5, "schedule": 2.0, "build": 4.0},
        wrapper_path=Path("/tmp/wrapper.py"),
        wrapper_source="\n".join(f"    {step.name}(buf{n})  # </script> <b>" for n, step in enumerate(steps)),
        kernel_paths={one: Path(f"/tmp/{one}.py") for one in kernels},
        kernel_sources={
            one: "\n".join(f"x{n} = tl.load(p + {n}) < {at % 40}" for n in range(60)) for at, one in enumerate(kernels)
        },
        plugins=("core", "roofline"),
        frame=Frame(
            "0/1", "forward", "model.py:90", "Unsupported <builtin>\n  Explanation: print", "0/0: size mismatch"
        ),
        noted=tuple(
            PassNote(change.plugin, change.name, Effect(), change)
            for change in (
                Change("inline_pointwise", "program", "core", 0.25, 900, 600, removed, ("loop7 = kept",), 12, 0),
                Change("order_steps", "schedule", "core", 0.01, 900, 900),
            )
        ),
    )
