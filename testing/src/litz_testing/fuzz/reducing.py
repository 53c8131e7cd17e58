"""Statements that combine elements: reductions, scans, normalisations, matrix products."""

from __future__ import annotations

import torch

from .operations import Draft, Draw, Place, is_number, operation_on, place, some

MOMENTS = ("mean", "var", "std", "logsumexp", "norm", "softmax", "log_softmax")


@operation_on(some(), 4.0)
def reduction(draw: Draw, name: str) -> Draft | None:
    """Reduces some dimensions or all."""
    value = draw.value(name)
    keep = draw.rng.choice([", keepdim=True", "", ""])
    dims = draw.dims(name)
    whole = draw.chance(0.2) or value.dim() == 0
    kinds = ["sum", "sum", "amax", "amin", "any", "all", "prod", "count_nonzero", "nansum"]
    if value.dtype.is_floating_point:
        kinds += ["mean", "mean", "var", "std", "logsumexp", "vector_norm"]
    kind = draw.rng.choice(kinds)
    exact = kind in ("any", "all", "count_nonzero")
    arguments = f"{dims}{keep}"
    if kind == "count_nonzero":
        return Draft(f"torch.count_nonzero({name}, {dims})", exact=True)
    if kind == "vector_norm":
        order = draw.rng.choice(["2", "1", "inf"])
        return Draft(f"torch.linalg.vector_norm({name}, {order}, {arguments})", rough=True)
    if kind in ("any", "all", "prod"):
        dim = draw.dim(name)
        arguments = f"{dim}{keep}"
        if kind == "prod" and value.numel() > 64 and value.dtype.is_floating_point:
            return None
    if whole and kind != "logsumexp":
        arguments = ""
    if kind in ("sum", "prod", "mean") and draw.chance(0.15):
        wanted = "torch.float32" if value.dtype.is_floating_point else "torch.int64"
        arguments += f"{', ' if arguments else ''}dtype={wanted}"
    if kind in ("var", "std") and arguments and not whole:
        arguments += f", correction={draw.rng.choice('01')}"
    text = f"torch.{kind}({name}{', ' if arguments else ''}{arguments})"
    return Draft(text, exact, rough=kind in (*MOMENTS, "prod"), centred=kind in ("var", "std"))


@operation_on(some(is_number, exact=True), 1.5)
def extreme(draw: Draw, name: str) -> Draft | None:
    """Finds extremes and their places: argmax, min with a dim, cummax, sort, topk and the like."""
    dim = draw.dim(name, 1)
    call = draw.rng.choice(["argmax", "argmin", "max", "min", "argmax", "cummax", "cummin", "sort", "argsort", "topk"])
    if dim is None or (call.startswith("arg") and draw.chance(0.2)):
        return Draft(f"torch.{'argmax' if call == 'argmax' else 'argmin'}({name})", exact=True)
    which = draw.rng.choice("01")
    if call == "sort":
        return Draft(f"torch.sort({name}, dim={dim}, stable=True)[{which}]", exact=True)
    if call == "argsort":
        return Draft(f"torch.argsort({name}, dim={dim}, stable=True)", exact=True)
    if call == "topk":
        return Draft(f"torch.topk({name}, 1, {dim})[0]", exact=True)
    keep = draw.rng.choice(["", ", keepdim=True"])
    if call.startswith("arg"):
        return Draft(f"torch.{call}({name}, {dim}{keep})", exact=True)
    if call.startswith("cum"):
        return Draft(f"torch.{call}({name}, {dim})[{which}]", exact=True)
    # Which of several equal elements has its index returned is not promised where dim is reduced.
    return Draft(f"torch.{call}({name}, {dim}{keep})[{which}]", exact=True)


@operation_on(place(is_number), 1.5)
def scan(draw: Draw, at: Place) -> Draft | None:
    """Applies a cumulative sum or product, or logcumsumexp, along one dimension."""
    name, dim, extent = at
    kind = draw.rng.choice(["cumsum", "cumsum", "cumsum", "cumprod", "logcumsumexp"])
    if kind == "logcumsumexp":
        return Draft(f"torch.logcumsumexp({name}, {dim})", rough=True) if _floating(draw, name) else None
    if kind == "cumprod" and extent > 8:
        return None
    return Draft(f"torch.{kind}({name}, {dim})")


@operation_on(some(lambda t: t.dtype.is_floating_point and t.dim() > 0), 2.0)
def normalisation(draw: Draw, name: str) -> Draft | None:
    """Normalises along one dimension: softmax, layer norm, or written out with means and variances."""
    value, dim = draw.value(name), draw.dim(name) or 0
    roll = draw.rng.random()
    if roll < 0.5:
        kind = draw.rng.choice(["softmax", "log_softmax"])
        widened = ", dtype=torch.float32" if draw.chance(0.15) else ""
        return Draft(f"torch.{kind}({name}, {dim}{widened})", rough=True, deep=True)
    if roll < 0.75:
        last = draw.size(name, value.dim() - 1)
        return Draft(f"torch.nn.functional.layer_norm({name}, ({last},), eps=0.1)", rough=True, centred=True)
    mean = f"{name}.mean({dim}, keepdim=True)"
    return Draft(
        draw.rng.choice([
            f"{name} - {mean}",
            f"{name} / ({name}.abs().sum({dim}, keepdim=True) + 1)",
            f"torch.nn.functional.normalize({name}, dim={dim}, eps=0.5)",
            f"({name} - {mean}) * torch.rsqrt({name}.var({dim}, correction=0, keepdim=True) + 0.1)",
        ]),
        rough=True,
        centred=True,
    )  # fmt: skip


@operation_on(some(lambda t: t.dtype.is_floating_point and t.dim() > 0), 1.0)
def distance(draw: Draw, name: str) -> Draft | None:
    """Asks for the numbers that equal an extreme, or takes the root of how far each lies from it: where the extreme was
    found of other roundings of the numbers, none does, or the root is NaN. A root's gradient at 0 is infinite, and
    nobody asks for that."""
    dim = draw.dim(name) or 0
    least, most = (f"{name}.{kind}({dim}, keepdim=True)" for kind in ("amin", "amax"))
    at = f"{name}.gather({dim}, {name}.argmax({dim}, keepdim=True))"
    if draw.chance(0.2):
        return Draft(f"({name} == {draw.rng.choice([least, most, at])}).any({dim})")
    text = draw.rng.choice([
        f"{most} - {name}", f"{name} - {least}", f"{most} - {least}", f"{at} - {name}",
        f"{name}.cummax({dim}).values - {name}", f"{most}.maximum({at}) - {at}",
    ])  # fmt: skip
    return Draft(f"({text}).detach().sqrt()", rough=True)


@operation_on(some(lambda t: t.dtype.is_floating_point and t.dim() == 2 and t.numel() < 3000), 0.7)
def product(draw: Draw, name: str) -> Draft | None:
    """Multiplies matrices by a library call between kernels."""
    value = draw.value(name)
    other = draw.any(lambda t: t.dtype == value.dtype and t.dim() == 2 and t.shape[0] == value.shape[1])
    text = f"{name} @ {other}" if other else f"{name} @ {name}.mT"
    return Draft(text, rough=True)


def _floating(draw: Draw, name: str) -> bool:
    return draw.value(name).dtype.is_floating_point and draw.value(name).dtype != torch.float16
