"""Physics: long pointwise programs and stencils over fields in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .model import Inputs, Model


def _polynomial(x: Tensor, *factors: float) -> Tensor:
    """factors[0] + factors[1] x + factors[2] x^2 + ..., by Horner's rule."""
    total = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + factor
    return total


class SeaWater(nn.Module):
    """The density of sea water by the equation of state EOS-80 (UNESCO technical papers in marine science 44, 1983).

    salt (practical salinity), heat (degrees Celsius), pressure (bar), all of one shape: kg/m3. The rest says what an
    ocean model needs as well: the speed of sinking and whether the column is stable from one layer to the next.
    """

    def forward(self, salt: Tensor, heat: Tensor, pressure: Tensor) -> dict[str, Tensor]:
        root = salt.sqrt()
        fresh = _polynomial(heat, 999.842594, 6.793952e-2, -9.095290e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9)
        first = _polynomial(heat, 8.24493e-1, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9)
        second = _polynomial(heat, -5.72466e-3, 1.0227e-4, -1.6546e-6)
        surface = fresh + salt * (first + root * second + 4.8314e-4 * salt)
        bulk = _polynomial(heat, 19652.21, 148.4206, -2.327105, 1.360477e-2, -5.155288e-5)
        bulk = bulk + salt * _polynomial(heat, 54.6746, -0.603459, 1.09987e-2, -6.1670e-5)
        bulk = bulk + salt * root * _polynomial(heat, 7.944e-2, 1.6483e-2, -5.3009e-4)
        linear = _polynomial(heat, 3.239908, 1.43713e-3, 1.16092e-4, -5.77905e-7)
        linear = linear + salt * (_polynomial(heat, 2.2838e-3, -1.0981e-5, -1.6078e-6) + 1.91075e-4 * root)
        square = _polynomial(heat, 8.50935e-5, -6.12293e-6, 5.2787e-8)
        square = square + salt * _polynomial(heat, -9.9348e-7, 2.0816e-8, 9.1697e-10)
        density = surface / (1 - pressure / (bulk + pressure * (linear + pressure * square)))
        stable = (density[:, 1:] - density[:, :-1]) * (9.81 / 1025.0)
        return {"density": density, "stable": stable.clamp(min=0).sqrt()}


def _water(batch: int, tiny: bool) -> Inputs:
    """batch fields of 26 depths."""
    size = (batch, 26, *((8, 10) if tiny else (512, 512)))
    depth = torch.arange(26).view(1, -1, 1, 1).expand(size)
    return {
        "salt": 34 + 2 * torch.rand(size),
        "heat": 2 + 20 * torch.rand(size),
        "pressure": depth * 20.0 + torch.rand(size),
    }


class ShallowWater(nn.Module):
    """Two steps of the shallow-water equations on a periodic grid: height and velocities (batch, side, side)."""

    def step(self, h: Tensor, u: Tensor, v: Tensor, dt: float = 0.01, g: float = 9.81) -> tuple[Tensor, ...]:
        def dx(f: Tensor) -> Tensor:
            return (f.roll(-1, -1) - f.roll(1, -1)) / 2

        def dy(f: Tensor) -> Tensor:
            return (f.roll(-1, -2) - f.roll(1, -2)) / 2

        def smooth(f: Tensor) -> Tensor:
            return (f.roll(1, -1) + f.roll(-1, -1) + f.roll(1, -2) + f.roll(-1, -2) - 4 * f) * 0.05

        spin = 1e-2 + dx(v) - dy(u)
        energy = g * h + (u * u + v * v) / 2
        return (
            h - dt * (dx(h * u) + dy(h * v)) + smooth(h),
            u + dt * (spin * v - dx(energy)) + smooth(u),
            v - dt * (spin * u + dy(energy)) + smooth(v),
        )

    def forward(self, h: Tensor, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        for _ in range(2):
            h, u, v = self.step(h, u, v)
        return {"h": h, "u": u, "v": v}


def _lake(batch: int, tiny: bool) -> Inputs:
    size = (batch, *(2 * [12 if tiny else 1024]))
    return {"h": 10 + torch.rand(size), "u": torch.randn(size) * 0.1, "v": torch.randn(size) * 0.1}


MODELS = (
    Model("sea_water", "physics", lambda tiny: SeaWater(), _water, None, 4, half=False),
    Model("shallow_water", "physics", lambda tiny: ShallowWater(), _lake, None, 8, half=False),
)
