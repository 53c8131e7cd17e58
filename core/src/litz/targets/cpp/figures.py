"""Figures that C++ kernels go by."""

from __future__ import annotations

from dataclasses import dataclass

from litz.target import Room


@dataclass(frozen=True)
class CppFigures(Room):
    """Figures of C++ kernels, which `target/figures/cpu/cpp.toml` explains."""

    table = "cpp"
    most_columns: int
    most_tiles: int
    parallel_values: int
    row_bytes: int
    long_values: int
    chunk_elements: int
    tile_bytes: int
    staged_outputs: int
    segments_values: int
    segments_loads: float
    segments_elements: int
