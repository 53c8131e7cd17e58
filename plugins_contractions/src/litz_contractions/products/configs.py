"""Tiles: which there are, which a device can run, and how long each is expected to take.

In: a product's likely sizes, a device. Out: configurations from the most to the least promising, and those that were
left out with the reason. The estimate only ranks: it decides which few are measured, never which one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import torch

from litz.target import Room, figures_of, rate_kind
from litz.target.times import Limit, Programs, alike, longest, matrix, second_level, time_of
from litz.targets.triton.tile_shape import THREADS
from litz_plugins import Estimate, Target


@dataclass(frozen=True)
class Config:
    """One way to cut a product up. m, n, k: the tile, in elements. stages: tiles of operands in flight at a time.
    group: rows of tiles that are walked together, so that operands stay in the L2. split: parts of k. programs: if not
    0, so many programs walk over all tiles, with the tensor memory accelerator (TMA) bringing the operands. apart: a
    tile has each `apart`-th row of the result (`litz_contractions.products.blocks`)."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    group: int = 8
    split: int = 1
    programs: int = 0
    apart: int = 1

    def __str__(self) -> str:
        parts = f", split {self.split}" if self.split > 1 else ""
        parts += ", persistent with TMA" if self.programs else ""
        parts += f", rows {self.apart} apart" if self.apart > 1 else ""
        return f"{self.m}x{self.n}x{self.k}, {self.stages} stages, {self.warps} warps{parts}"


@dataclass(frozen=True)
class Shape:
    """The likely sizes of a product. k: of all products together. in_bytes, out_bytes: per element of the operands and
    of the result; extra_bytes: what the epilogue reads and writes besides the result, in all."""

    batch: int
    m: int
    n: int
    k: int
    dtype: torch.dtype
    in_bytes: int
    out_bytes: int
    extra_bytes: int = 0
    tf32: bool = False
    tma: bool = False
    """Can TMA bring the operands?"""


@dataclass(frozen=True)
class ConfigFigures(Room):
    """Figures of products' tiles, which `figures/gpu/configs.toml` explains."""

    table = "configs"
    tried_tiles: tuple[tuple[int, int, int, int, int], ...]
    least_tma_rows: int
    tma_share: float
    address_registers: int
    other_registers: int
    reached_share: float
    efficiency_shares: tuple[tuple[int, float], ...]
    step_us: float
    spread_times: float


SPLITS = (2, 4, 8, 16, 32, 64, 128)
"""Parts that k is cut into where the result has too few tiles to keep the device busy."""


def all_configs(itemsize: int, target: Target) -> list[Config]:
    """Returns every configuration for operands of `itemsize` bytes an element, without splits, each once."""
    tiles = figures_of(target, ConfigFigures).tried_tiles
    found = (Config(m, n, max(16, step // itemsize), *others) for m, n, step, *others in tiles)
    return list(dict.fromkeys(found))


THREAD_REGISTERS = 255
"""The registers that a thread may have (CUDA C++ Programming Guide, "Compute capabilities")."""


def shared_bytes(config: Config, in_bytes: int) -> int:
    """Returns what the operands in flight take. Triton keeps `stages` tiles of each; in a persistent kernel the
    result's way out overlaps with them (measured by compiling all configurations: up to 32 KiB and a few barriers)."""
    way_out = min(2 * config.m * config.n, 32768) + 1024 if config.programs else 0
    return config.stages * (config.m + config.n) * config.k * in_bytes + way_out


def accumulators(config: Config) -> int:
    """Returns how many registers (32-bit) of a thread hold sums."""
    return config.m * config.n // (THREADS * config.warps)


def misfit(config: Config, shape: Shape, target: Target) -> str:
    """Returns why a device cannot run a configuration, or why it cannot be any good; "" if neither holds."""
    limits = figures_of(target, ConfigFigures)
    needed, limit = shared_bytes(config, shape.in_bytes), target.shared_bytes
    if needed > limit:
        return f"needs {needed // 1024} KiB of shared memory of {limit // 1024}"
    if accumulators(config) + limits.address_registers > THREAD_REGISTERS:
        return f"needs {accumulators(config)} registers a thread for its sums alone"
    if _wasteful(config.m, shape.m) or _wasteful(config.n, shape.n):
        return f"the tile is more than twice the result, {shape.m} x {shape.n}"
    return ""


def _wasteful(tile: int, size: int) -> bool:
    return tile > 16 and tile >= 2 * max(16, size)


def blocks_per_unit(config: Config, in_bytes: int, target: Target) -> int:
    """Returns how many tiles a multiprocessor works on at a time, by its memory, registers and threads: 1 or more."""
    limits = figures_of(target, ConfigFigures)
    by_shared = target.shared_bytes // max(1, shared_bytes(config, in_bytes))
    threads = THREADS * config.warps
    by_registers = target.registers // (
        threads * min(THREAD_REGISTERS, accumulators(config) + limits.address_registers + limits.other_registers)
    )
    return max(1, min(by_shared, by_registers, target.threads // threads))


def estimate(config: Config, shape: Shape, target: Target) -> Estimate:
    """Returns the expected time of a configuration, in µs: for waves of tiles or for the bytes, whichever is longer."""
    limits = figures_of(target, ConfigFigures)
    rows, columns = ceil(shape.m / config.m), ceil(shape.n / config.n)
    tiles = rows * columns * shape.batch * config.split
    depth = ceil(ceil(shape.k / config.split) / config.k) * config.k
    area = min(32768, max(256, config.m * config.n))
    reached = dict(limits.efficiency_shares)[1 << (area.bit_length() - 1)]
    resident = 1 if config.programs else blocks_per_unit(config, shape.in_bytes, target)
    programs = Programs(tiles, target.units, resident)
    # Tiles that share a multiprocessor share its tensor cores, so a full wave takes `resident` times as long.
    places = programs.waves * min(resident, ceil(tiles / target.units)) * target.units
    reached /= limits.tma_share if config.programs and programs.waves > 1 else 1.0
    # What must come from memory at least once.
    operands = shape.batch * (shape.m + shape.n) * shape.k * shape.in_bytes
    result = shape.batch * shape.m * shape.n * shape.out_bytes + shape.extra_bytes
    if config.split > 1:
        result += 2 * shape.batch * shape.m * shape.n * 4 * config.split
    # Few tiles in flight do not fill the memory's pipes: each has stages - 1 tiles of operands on the way.
    flight = min(tiles, target.units * resident) * (config.stages - 1) * (config.m + config.n) * config.k
    reachable = min(target.bandwidth * limits.reached_share, max(1, flight) * shape.in_bytes / limits.step_us)
    through_l2 = float(tiles) * (config.m + config.n) * depth * shape.in_bytes
    bounds = (
        matrix(
            places * 2.0 * config.m * config.n * depth, rate_kind(shape.dtype), target, alike(reached), why="arithmetic"
        ),
        # What every tile reads, from the L2 where the group still has it; units without a tile draw nothing.
        second_level(through_l2, target, programs.busy, usual=True, why="L2 traffic"),
        Limit((operands + result) / reachable, why="memory traffic"),
    )
    why = f"{tiles} tiles in {programs.waves} wave{'s' if programs.waves > 1 else ''}, {longest(bounds).why}"
    launched = alike(1.0 + (config.split > 1))
    return time_of(bounds, target, launched, 2 * limits.step_us, limits.spread_times, why)


@dataclass(frozen=True)
class Ranked:
    """Configurations with their estimates, the best first, and (name, why) of the rejected ones."""

    best: tuple[tuple[Config, Estimate], ...]
    rejected: tuple[tuple[str, str], ...]


PER_TILE = 4
"""Configurations of one tile size among those that are measured: the estimate hardly tells stages and warps apart."""


def spread(best: Sequence[tuple[Config, Estimate]], count: int) -> tuple[tuple[Config, Estimate], ...]:
    """Returns the first `count` of `best`, with at most `PER_TILE` of one tile size as long as there are others."""
    seen: dict[tuple[int, int], int] = {}
    chosen: list[tuple[Config, Estimate]] = []
    rest: list[tuple[Config, Estimate]] = []
    for item in best:
        tile = (item[0].m, item[0].n)
        seen[tile] = seen.get(tile, 0) + 1
        (chosen if seen[tile] <= PER_TILE else rest).append(item)
    return tuple([*chosen, *rest][:count])


@lru_cache(maxsize=256)
def rank(shape: Shape, target: Target, splits: bool = True) -> Ranked:
    """Returns the configurations that fit the device, the quickest by estimate first, and the others with what does not
    fit. splits: also those that cut the depth into parts."""
    fitting: list[tuple[Config, Estimate]] = []
    limits = figures_of(target, ConfigFigures)
    rejected: list[tuple[str, str]] = []
    for config in all_configs(shape.in_bytes, target):
        why = misfit(config, shape, target)
        if why:
            rejected.append((str(config), why))
            continue
        variants = [config, *(_splits(config, shape, target.units) if splits else ())]
        if shape.tma and "tma" in target.abilities and min(config.m, config.n) >= limits.least_tma_rows:
            persistent = replace(config, programs=target.units)
            variants += [] if misfit(persistent, shape, target) else [persistent]
        for variant in variants:
            fitting.append((variant, estimate(variant, shape, target)))
    fitting.sort(key=lambda item: item[1].us)
    return Ranked(tuple(fitting), tuple(rejected))


def _splits(config: Config, shape: Shape, units: int) -> list[Config]:
    """The configuration with k cut up: where the tiles are fewer than half of the units, and each part has 4 steps."""
    tiles = ceil(shape.m / config.m) * ceil(shape.n / config.n) * shape.batch
    return [
        replace(config, split=split)
        for split in SPLITS
        if tiles * split <= 2 * units and tiles <= units // 2 and shape.k >= split * config.k * 4
    ]
