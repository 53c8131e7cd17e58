"""What the options ask for. In: options, and a kind of contraction. Out: is it tuned, is it looked up, how much may be
fused into it. The module loads no torch: `litz options` reads the tables."""

from __future__ import annotations

from urllib.parse import urlsplit

from litz_plugins import OptionsView, Secret

SEARCH = {"fast": 4, "default": 12, "exhaustive": 1000}
"""How many configurations are measured, by `autotune.search`."""
ASKS = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
"""Core's options that ask for measurements."""
LIBRARY_BACKEND = "library"
TEMPLATE_BACKEND = "triton"
BACKENDS = (LIBRARY_BACKEND, TEMPLATE_BACKEND)
SCHEMES = ("redis", "rediss", "unix")
"""What the address of a Redis server may begin with."""


def check_address(url: Secret) -> None:
    """Raises ValueError unless the redis package can read an address. The message has nothing of the address."""
    try:
        parts = urlsplit(url.reveal())
        right = parts.scheme in SCHEMES and parts.port != 0
    except ValueError:  # of the port, whose text may be a part of the password
        right = False
    if not right:
        raise ValueError("that is no address of a Redis server")


def why_never() -> str:
    """Returns why no measurement counts, "" where measurements count: what won may differ from process to process, and
    the order of a sum with the winner."""
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return ""
    return "torch.use_deterministic_algorithms is on, and measurements differ"


def is_active(options: OptionsView) -> bool:
    """Returns whether there is anything to do under these options."""
    return measures(options) or looks_up(options)


def looks_up(options: OptionsView) -> bool:
    """Returns whether earlier measurements decide where nothing is measured."""
    return bool(options["autotune.search_cache"]) and not why_never()


def measures(options: OptionsView) -> bool:
    """Returns whether anything is measured."""
    return any(options[name] for name in ASKS) and not why_never()


def measures_kernels(options: OptionsView) -> bool:
    """Returns whether settings of generated kernels are measured."""
    asked = options["autotune.kernels"] and (options["max_autotune"] or options["max_autotune_pointwise"])
    return bool(asked) and not why_never()


def is_measured(options: OptionsView, kind: str) -> bool:
    """Returns whether contractions of this kind are measured. `max_autotune_gemm` alone: only products ("mm", ...)."""
    if why_never():
        return False
    if options["max_autotune"] or not options["max_autotune_gemm"]:
        return bool(options["max_autotune"])
    from litz_contractions.api import OPERANDS

    return kind in OPERANDS


def is_decided(options: OptionsView, kind: str) -> bool:
    """Returns whether contractions of this kind are decided here: measured, or looked up among measurements."""
    return is_measured(options, kind) or looks_up(options)


def most_in_one_kernel(options: OptionsView) -> int | None:
    """Returns how many nodes of the graph a contraction's kernel may do, itself among them; None for no limit."""
    from litz.schedule.fusion_size import most_operations

    return most_operations(options) if options["autotune.fusion"] else 1


__all__ = [
    "ASKS",
    "BACKENDS",
    "LIBRARY_BACKEND",
    "SEARCH",
    "TEMPLATE_BACKEND",
    "is_active",
    "is_decided",
    "is_measured",
    "looks_up",
    "measures",
    "measures_kernels",
    "most_in_one_kernel",
    "why_never",
]
