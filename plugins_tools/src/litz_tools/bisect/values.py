"""Results of calls, compared with eager's. In: what a watched script's calls return. Out: where they differ, and by how
much of what is allowed.

The run in eager writes what its first calls return, and how far that is from the same in float64; every other run reads
it and compares. Run by path from `child.py`: it needs nothing of litz.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MOST_CALLS = 16
"""Calls of each function that are compared."""

MOST_BYTES = 1 << 30
"""The most bytes of results that are kept to compare with."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""Largest difference, by the largest magnitude of the tensor, that rounding and another order of sums may make."""
OTHER_FLOAT = 0.25
TIMES_EAGER = 4.0
"""Or so many times what eager itself is away from float64."""
CREDIBLE = 0.05
"""A float64 run farther from eager than that did something else: random numbers, a cache written twice."""
GRADIENTS = 1e-2
"""The share of the largest gradient below which differences are measured by that share: some gradients are nothing but
rounding (of a bias before a normalization)."""
BACKWARD = 10.0
"""Times that gradients may differ by more: they go through every layer twice (1.2e-4 in a MobileNet in float32)."""
_PLAIN = (torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)


class Values:
    """The results of one run. files: {"write": path} for the run in eager, {"read": path} for the others. tolerance: of
    differences, None for one by dtype."""

    def __init__(self, files: dict[str, str], tolerance: float | None) -> None:
        self.tolerance = tolerance
        self.target = files.get("write")
        source = files.get("read")
        known = torch.load(source, weights_only=True, map_location="cpu") if source else []
        self.known = {(site, number): (leaves, noise) for site, number, leaves, noise in known}
        self.written: list[Any] = []
        self.room = MOST_BYTES
        self.counts: dict[str, int] = {}
        self.differences: list[dict[str, Any]] = []

    def exact(self, site: str, eager: Callable[..., Any], args: Any, kwargs: Any) -> list[Any] | None:
        """Returns the leaves of what a call returns in float64, None where that is not known. Only plain arguments are
        tried: the call may change others."""
        if not self.target or self.counts.get(site, 0) >= MOST_CALLS:
            return None
        if not all(isinstance(leaf, _PLAIN) for leaf in tree_leaves((args, kwargs))):
            return None
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices):
                own_args, own_kwargs = tree_map(_doubled, (args, kwargs))  # copies: the call may write them
                with _InDouble():
                    return _leaves(eager(*own_args, **own_kwargs))
        except Exception:  # an op that is not there in float64: eager alone is the judge
            return None

    def take(self, site: str, result: Any, exact: list[Any] | None) -> None:
        """Takes one result: the run in eager keeps it, any other run compares it with what was kept."""
        number = self.counts.get(site, 0)
        self.counts[site] = number + 1
        if number >= MOST_CALLS:
            return
        leaves = _leaves(result)
        if self.target:
            self.write(site, number, leaves, exact)
        elif (site, number) in self.known:
            self.compare(site, number, leaves, *self.known[site, number])

    def write(self, site: str, number: int, leaves: list[torch.Tensor], exact: list[torch.Tensor] | None) -> None:
        """Keeps the results of one call in eager as references, or their float64 values where eager agrees with these.
        exact: the same results in float64, None if unknown. Once the memory for references is used up, nothing is
        kept."""
        self.room -= sum(leaf.nbytes for leaf in leaves)
        if self.room < 0:
            return
        kept, noise = leaves, [0.0] * len(leaves)
        if exact is not None and len(exact) == len(leaves):
            found = [_difference(mine, theirs) for mine, theirs in zip(leaves, exact, strict=True)]
            if all(each < CREDIBLE for each in found):
                kept, noise = [e if _is_float(own) else own for e, own in zip(exact, leaves, strict=True)], found
        typed = [(leaf, str(own.dtype)) for leaf, own in zip(kept, leaves, strict=True)]
        self.written.append((site, number, typed, noise))

    def compare(self, site: str, number: int, leaves: list[Any], known: list[Any], noise: list[float]) -> None:
        """Compares the results of one call with the references. known: (tensor, dtype name) of each reference. noise:
        how far eager itself was from float64, as relative differences. Another number, shape or dtype counts as
        infinitely far."""
        if len(leaves) != len(known):
            self._differs(site, number, 0, math.inf, 0.0)
            return
        floor = GRADIENTS * max(map(_largest, leaves), default=0.0) if site == "backward" else 0.0
        for at, (mine, (theirs, dtype), own) in enumerate(zip(leaves, known, noise, strict=True)):
            if mine.shape != theirs.shape or str(mine.dtype) != dtype:
                self._differs(site, number, at, math.inf, 0.0)
                continue
            usual = _allowed(mine.dtype) * (BACKWARD if site == "backward" else 1.0)
            allowed = self.tolerance if self.tolerance is not None else usual
            self._differs(site, number, at, _difference(mine, theirs, floor), max(allowed, TIMES_EAGER * own))

    def _differs(self, site: str, number: int, leaf: int, found: float, allowed: float) -> None:
        ratio = found / allowed if allowed else (math.inf if found else 0.0)
        row = {"site": site, "call": number, "output": leaf, "difference": found, "allowed": allowed, "ratio": ratio}
        self.differences.append(row)

    def finish(self) -> list[dict[str, Any]]:
        """Returns the comparisons of the run, the worst first. The run in eager writes its results to the file instead,
        and has no comparisons."""
        if self.target:
            torch.save(self.written, Path(self.target))
        return sorted(self.differences, key=lambda row: -row["ratio"])


def _leaves(result: Any) -> list[torch.Tensor]:
    found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [leaf.detach().to("cpu", copy=True).contiguous() for leaf in found]


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


def _allowed(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, OTHER_FLOAT if dtype.is_floating_point else 0.0)


def _largest(tensor: torch.Tensor) -> float:
    """Returns the largest magnitude among the finite elements."""
    finite = tensor[torch.isfinite(tensor)] if _is_float(tensor) else tensor[:0]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _difference(mine: torch.Tensor, theirs: torch.Tensor, floor: float = 0.0) -> float:
    """The largest difference over the largest magnitude, or over `floor` if that is larger; infinite where NaNs,
    infinities or integers differ."""
    if mine.shape != theirs.shape:
        return math.inf
    if mine.is_complex() or theirs.is_complex():
        mine, theirs = torch.view_as_real(mine.to(torch.complex128)), torch.view_as_real(theirs.to(torch.complex128))
    if not _is_float(mine):
        return 0.0 if torch.equal(mine, theirs.to(mine.dtype)) else math.inf
    a, b = mine.to(torch.float64), theirs.to(torch.float64)
    finite = torch.isfinite(a) & torch.isfinite(b)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    if not bool((finite | same).all()):
        return math.inf
    a, b = a[finite], b[finite]
    if a.numel() == 0:
        return 0.0
    gap = float((a - b).abs().max())
    return gap / max(float(b.abs().max()), floor, 1e-30) if gap else 0.0


class _InDouble(TorchDispatchMode):
    """Every operation in float64, whatever it is given and asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def double(item: Any) -> Any:
            if isinstance(item, torch.Tensor) and _is_float(item) and item.dtype != torch.float64:
                return item.to(torch.float64)
            if isinstance(item, torch.dtype) and item.is_floating_point:
                return torch.float64
            return item

        return func(*tree_map(double, args), **tree_map(double, kwargs or {}))


def _doubled(item: Any) -> Any:
    """A copy of a tensor, in float64 if it is of floats; anything else as it is."""
    if not isinstance(item, torch.Tensor):
        return item
    return item.to(torch.float64, copy=True) if _is_float(item) else item.clone()


__all__ = ["Values"]
