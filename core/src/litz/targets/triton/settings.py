"""Settings of a kernel: what of its tiling may be chosen otherwise, as data.

In: the tiling that was worked out, and settings. Out: a tiling with these; or the settings one step away, of which
somebody may measure the fastest (`TunableCodegen`). Which ranges lie along which axis is not a setting.

    x, y, r    elements of a block along an axis
    warps      of a program, of 32 threads each
    held       1: a row is in registers, 0: it is walked block by block
    stages     blocks along a row that are on their way at a time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from litz.codegen.kernel_plan import KernelPlan
from litz.tiles.shape import Axis, Tiling

from .tile_shape import THREADS, clamp, power_of_two

MOST_ELEMENTS = 64
"""Of a thread, beyond which nothing is tried."""
MOST_WARPS, MOST_STAGES = 32, 3
LONGEST = 32768
"""Elements of a row that is tried in registers."""
EACH = 16
"""Elements of a thread where rows are held that were walked, or the other way."""
WALKED = 4
"""Parts of a row that was held, when it is first walked block by block."""


def settings_of(tiling: Tiling) -> dict[str, int]:
    """Returns the settings that give a tiling, complete."""
    found = {axis.name: axis.block for axis in tiling.axes} | {"warps": tiling.num_warps}
    if tiling.axis("r") is not None:
        found |= {"held": int(tiling.persistent)}
        found |= {} if tiling.persistent else {"stages": tiling.stages}
    return found


def with_settings(tiling: Tiling, settings: Mapping[str, int]) -> Tiling:
    """Returns the tiling with other settings; a setting that is not named stays. Errors: ValueError for settings that
    the tiling cannot have."""
    own = settings_of(tiling)
    held = bool(settings.get("held", own.get("held", 0)))
    known = {*own, "stages"} if "held" in own and not held else {*own} - ({"stages"} if held else set())
    if settings.keys() - known:
        raise ValueError(f"no settings of this kernel: {', '.join(sorted(settings.keys() - known))}")
    axes = tuple(replace(axis, block=settings.get(axis.name, axis.block)) for axis in tiling.axes)
    warps, stages = settings.get("warps", tiling.num_warps), settings.get("stages", 1 if held else tiling.stages)
    if not all(value > 0 and value.bit_count() == 1 for value in (*(axis.block for axis in axes), warps)):
        raise ValueError("blocks and warps are powers of two")
    if settings.get("held", int(held)) not in (0, 1) or warps > MOST_WARPS or not 1 <= stages <= MOST_STAGES:
        raise ValueError(f"held is 0 or 1, warps are {MOST_WARPS} at most, stages {MOST_STAGES}")
    r = next((axis for axis in axes if axis.name == "r"), None)
    if r is not None and held != tiling.persistent and not _may_change(tiling):
        raise ValueError("rows of this kernel are held as they are, or not at all")
    if r is not None and held and r.block < _row_block(tiling):
        raise ValueError("a row that is held is in one block")
    together = 1 if r is None or held else max(1, min(tiling.together, r.block // (THREADS * warps)))
    return replace(tiling, axes=axes, num_warps=warps, persistent=held, stages=stages, together=together)


def near(tiling: Tiling, plan: KernelPlan) -> Iterator[dict[str, int]]:
    """Yields the settings one step from a tiling's: more or fewer elements with as many of a thread, then by other
    threads; rows held or walked; more stages."""
    now = settings_of(tiling)
    held, r = bool(now.get("held")), tiling.axis("r")
    blocks = [axis.name for axis in reversed(tiling.axes) if axis.name != "r" or not held]
    for name in blocks:
        for up in (True, False):
            yield from _fitting(now | {name: _step(now[name], up), "warps": _step(now["warps"], up)}, tiling, plan)
    for name in ("warps", *blocks):
        for up in (True, False):
            yield from _fitting(now | {name: _step(now[name], up)}, tiling, plan)
    if r is None:
        return
    if not held:
        for stages in (now["stages"] + 1, now["stages"] - 1):
            yield from _fitting(now | {"stages": stages}, tiling, plan)
    if not _may_change(tiling) or plan.loops[0].has_scan:
        return
    x = now.get("x", 1)
    if held:
        block = max(1, r.block // WALKED)
        warps = clamp(x * block // (THREADS * EACH), 1, now["warps"])
        yield from _fitting(now | {"warps": warps, "held": 0, "stages": 1, "r": block}, tiling, plan)
    elif (block := _row_block(tiling)) <= LONGEST:
        warps = clamp(x * block // (THREADS * EACH), 1, MOST_WARPS)
        rest = {name: value for name, value in now.items() if name != "stages"}
        yield from _fitting(rest | {"warps": warps, "held": 1, "r": block}, tiling, plan)


def _fitting(settings: dict[str, int], tiling: Tiling, plan: KernelPlan) -> Iterator[dict[str, int]]:
    """The settings, if a kernel may have them and they are worth a try."""
    try:
        other = with_settings(tiling, settings)
    except ValueError:
        return
    elements = 1
    for axis in other.axes:
        elements *= axis.block
        wide = _row_block(tiling) if axis.name == "r" and other.persistent else power_of_two(plan.hint(axis.size))
        if axis.block > max(wide, _block(tiling, axis)):
            return  # of no use: the axis is shorter
    if THREADS * other.num_warps <= elements <= THREADS * other.num_warps * MOST_ELEMENTS:
        yield settings


def _block(tiling: Tiling, axis: Axis) -> int:
    own = tiling.axis(axis.name)
    return 0 if own is None else own.block


def _row_block(tiling: Tiling) -> int:
    """The block that holds a row, and what lies before its first element."""
    r = tiling.axis("r")
    if r is None or not r.size.is_Integer:
        return 0
    lead = 0 if tiling.frame is None else tiling.frame.lanes - 1
    return power_of_two(int(r.size) + lead)


def _may_change(tiling: Tiling) -> bool:
    """Returns whether rows may be held that were not, or the other way. Rows that begin anywhere may not change, as
    their frame depends on it, nor rows whose length is not a constant."""
    r = tiling.axis("r")
    return r is not None and tiling.frame is None and bool(r.size.is_Integer) and int(r.size) > 0


def _step(value: int, up: bool) -> int:
    return 2 * value if up else value // 2
