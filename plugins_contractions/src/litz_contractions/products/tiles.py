"""How many tiles a product's result has. In: a `Gemm` and the `Config` of its kernel. Out: sizes."""

from __future__ import annotations

from sympy import ceiling

from litz.ir.index import Expr

from .apart import most_ahead
from .configs import Config
from .gemm import Gemm


def tiles_of(gemm: Gemm, config: Config) -> Expr:
    """Returns how many tiles a product's result has, all of a batch together."""
    apart, ahead = config.apart, most_ahead(config.apart)
    rows, columns = apart * ceiling(gemm.m / apart / config.m), ceiling((gemm.n + ahead) / config.n)
    return gemm.count * rows * columns


def workspace_size(gemm: Gemm, config: Config) -> Expr:
    """Returns the number of elements of the buffer of partial sums, which has a tile for each part of each tile."""
    return tiles_of(gemm, config) * config.split * config.m * config.n


__all__ = ["tiles_of", "workspace_size"]
