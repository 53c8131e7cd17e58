"""Which tiles a device can run, and in which order they are tried."""

from __future__ import annotations

import pytest
import torch

from litz.target import target_named, target_of
from litz_contractions.products.configs import Config, Shape, all_configs, misfit, rank, shared_bytes, spread
from support.no_gpu import gpu_hidden

with gpu_hidden():
    H100 = target_of("cuda")
T4 = target_named("Tesla T4")


def square(m: int, n: int = 0, k: int = 0, dtype: torch.dtype = torch.bfloat16) -> Shape:
    return Shape(1, m, n or m, k or m, dtype, dtype.itemsize, dtype.itemsize)


def test_nothing_that_is_offered_exceeds_the_device() -> None:
    for target, kib in ((H100, 227), (T4, 64)):
        for config, _ in rank(square(4096), target).best:
            assert shared_bytes(config, 2) <= target.shared_bytes == kib << 10
            assert config.m * config.n // (32 * config.warps) <= 215


def test_a_small_device_leaves_out_large_tiles_and_says_why() -> None:
    rejected = dict(rank(square(4096), T4).rejected)
    assert rejected["128x256x64, 3 stages, 8 warps"] == "needs 144 KiB of shared memory of 64"
    assert "128x256x64, 3 stages, 8 warps" not in dict(rank(square(4096), H100).rejected)


def test_the_registers_are_counted() -> None:
    assert "registers" in misfit(Config(256, 256, 32, 2, 4), square(4096), H100)


def test_a_large_product_takes_large_tiles_and_a_row_takes_flat_ones() -> None:
    large = rank(square(8192), H100).best[0][0]
    assert large.m * large.n >= 128 * 128 and large.split == 1
    row = rank(square(1, 4096, 4096), H100).best[0][0]
    assert row.m == 16


def test_few_tiles_with_a_long_sum_are_split() -> None:
    best = [config for config, _ in rank(square(128, 128, 16384), H100).best]
    assert best[0].split > 1
    assert all(config.split == 1 for config, _ in rank(square(8192), H100).best)


def test_not_all_that_is_measured_has_one_tile() -> None:
    best = rank(square(8192), H100).best
    few = spread(best, 10)
    tiles = [(config.m, config.n) for config, _ in few]
    assert len(few) == 10 and max(map(tiles.count, tiles)) <= 4
    assert few[0] == best[0] and set(spread(best, 1000)) == set(best)


def test_a_product_that_fills_half_the_device_takes_smaller_tiles() -> None:
    best = rank(square(1024), H100).best[0][0]
    assert best.m * best.n < 128 * 128


def test_the_order_is_that_of_the_estimates() -> None:
    times = [estimate.us for _, estimate in rank(square(1000, 3000, 500), H100).best]
    assert times == sorted(times) and len(times) > 10


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_every_tile_has_at_least_16_along_each_dimension(itemsize: int) -> None:
    for config in all_configs(itemsize, H100):
        assert min(config.m, config.n, config.k) >= 16
        assert all(size & (size - 1) == 0 for size in (config.m, config.n, config.k))


@pytest.mark.parametrize("size", [1, 3, 16, 17, 100, 4096])
def test_every_size_has_a_configuration(size: int) -> None:
    for shape in (square(size, 64, 64), square(64, size, 64), square(64, 64, size), square(size), square(5, 3, size)):
        assert rank(shape, H100).best
