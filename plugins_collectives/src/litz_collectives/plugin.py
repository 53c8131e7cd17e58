"""The hooks of litz-collectives: options, passes, the estimate of collectives and waits, commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from litz_plugins import Estimate, LitzError, OptionSpec, OptionsView, Pass, Target, Uncacheable, hookimpl

from .memory_limit import ACCEPTED, read_limit

if TYPE_CHECKING:
    from .model import Cost
    from .profile import Profile
    from .shared_builds import SharedBuilds

PASSES = ("overlap", "sink_waits", "raise_comms", "reorder_compute_for_overlap")


class CostFunctionError(LitzError):
    """The option collectives.cost names no function."""


@hookimpl
def litz_register_options() -> Sequence[OptionSpec]:
    """Returns the options whose names begin with `collectives.`."""
    return [
        OptionSpec(
            "cost",
            str,
            None,
            "a cost function of your own, module:function, asked before litz's",
            check=_check_name,
            accepts='a function as "package.module:function"',
        ),
        OptionSpec("passes", tuple, ("overlap",), "passes that move communication, in order", choices=PASSES),
        OptionSpec("verify_plan", bool, None, "compare the ranks' plans before they run; unset: in debug mode"),
        OptionSpec("verify_seconds", float, 60.0, "how long to wait for another rank's plan"),
        OptionSpec(
            "bucket_bytes", int, None, "the most memory that `overlap` merges into one collective; 0: none", unit=1
        ),
        OptionSpec(
            "memory_limit",
            str,
            "10%",
            "what `overlap` may take: a share more than without (10%), or 8GiB",
            check=read_limit,
            accepts=ACCEPTED,
        ),
        OptionSpec(
            "profile",
            Path,
            None,
            "JSON file of a measured or planned cluster; unset: by the GPU's name",
            check=Path.stat,
            accepts="the path of a file that is there",
        ),
        OptionSpec(
            "share_builds",
            bool,
            True,
            "take kernels that another rank of the job has built, over the process group's store",
            affects_code=False,
        ),
    ]


def _check_name(text: str) -> None:
    module, _, function = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError("that names no function of a module")


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the passes that collectives.passes names, in its order, between the order of steps and `reduce_in_place`,
    which litz-passes has; the check of the plan comes last."""
    from .overlap_pass import overlap
    from .reorder import make_pass, rules
    from .verify import verify_plan, wanted

    passes = options.get("collectives.passes") or ()
    runs = {"overlap": overlap, **{name: make_pass(*rule) for name, rule in rules(passes).items()}}
    found: list[Pass] = []
    for name in passes:
        previous = tuple(one.name for one in found[-1:])
        after = ("part_segments", "order_steps?", *previous)
        found.append(Pass(name, "schedule", runs[name], after, ("reduce_in_place?",)))
    if wanted(options):
        after = ("part_segments", *(one.name for one in found[-1:]), "run_beside?")
        found.append(Pass("verify_plan", "schedule", verify_plan, after))
    return found


@hookimpl
def litz_find_graph(kind: str, key: str, options: OptionsView) -> bytes | None:
    """Returns a kernel that another rank of the job has built."""
    return _shared_builds().fetch(kind, key) if options.get("collectives.share_builds", True) else None


@hookimpl
def litz_keep_graph(kind: str, key: str, content: bytes | None, options: OptionsView) -> None:
    """Leaves a kernel to the other ranks of the job."""
    if options.get("collectives.share_builds", True):
        _shared_builds().offer(kind, key, content)


@lru_cache(maxsize=1)
def _shared_builds() -> SharedBuilds:
    from litz.capture.torch_api import default_store

    from .shared_builds import SharedBuilds

    return SharedBuilds(default_store)


@hookimpl
def litz_cache_fingerprint(options: OptionsView) -> str | Uncacheable | None:
    """Returns the profile's content, the source of the user's function and, without a profile, the machine's links.
    Ranks that compare their plans all have to compile."""
    if options.get("collectives.verify_plan"):
        return Uncacheable("the ranks compare their plans while they compile (collectives.verify_plan)")
    path, name = options.get("collectives.profile"), options.get("collectives.cost")
    found = [path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""]
    if name is not None:
        source = getattr(import_module(name.partition(":")[0]), "__file__", None)
        if source is None:
            return Uncacheable(f"nobody knows the source of {name} (collectives.cost)")
        found.append(Path(source).read_text(encoding="utf-8"))
    if path is None and _communicates():
        from .topology import machine_topology

        found.append(repr(machine_topology()))
    return "\n".join(found)


def _communicates() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


@hookimpl
def litz_register_commands() -> Mapping[str, Any]:
    """Returns the commands that the plugin adds to `litz`."""
    from .audit_cli import audit
    from .calibrate_cli import calibrate
    from .cli import estimate_collective, fit_collectives

    return {
        "audit": audit,
        "calibrate-collectives": calibrate,
        "estimate-collective": estimate_collective,
        "fit-collectives": fit_collectives,
    }


@hookimpl
def litz_estimate_runtime(operation: Any, target: Target, program: Any, options: OptionsView | None) -> Estimate | None:
    """Returns what the user's own function says, where there is one that says something; then the model's time of a
    Collective: on a CPU only with a profile that the user names, as the model is NCCL's. A Wait takes no time of its
    own: what it waits for was counted where it started."""
    from litz.ir import Collective, Wait

    own = None if options is None else options.get("collectives.cost")
    if own is not None:
        found = user_estimate(own, operation, target, program)
        if found is not None:
            return found
    if isinstance(operation, Wait):
        return Estimate(0.0, 0.0, 0.0, "a wait: its communication is counted where it starts")
    if not isinstance(operation, Collective):
        return None
    if target.type == "cpu" and (options is None or options.get("collectives.profile") is None):
        return None  # no GPU's links stand in for those of a CPU
    cost = operation_cost(operation, program, chosen_profile(target, options))
    return None if cost is None else Estimate(cost.us, cost.low_us, cost.high_us, _why(cost))


def operation_cost(operation: Any, program: Any, profile: Profile) -> Cost | None:
    """Returns the cost of a Collective; None for an op that is not modelled or a group that is not known."""
    from .model import collective_cost
    from .traffic import message_of

    message = message_of(operation, program)
    return None if message is None else collective_cost(message, profile)


def chosen_profile(target: Target, options: OptionsView | None) -> Profile:
    """Returns the profile that the option collectives.profile names, else the profile for the device."""
    path = None if options is None else options.get("collectives.profile")
    return profile_of(target.name) if path is None else _profile_at(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _profile_at(path: Path, changed_ns: int) -> Profile:
    from .profile import read_profile

    return read_profile(path)


@lru_cache(maxsize=8)
def profile_of(gpu: str) -> Profile:
    """Returns the profile for a GPU's name: of this machine's links if NVML knows them, else of the usual links."""
    from .profile import Profile, builtin_profile
    from .topology import TopologyError, machine_topology, make_topology

    here = machine_topology()
    if here is not None:
        return Profile(here)
    try:
        return Profile(make_topology(gpu))
    except TopologyError:
        return builtin_profile()


def user_estimate(name: str, operation: Any, target: Target, program: Any) -> Estimate | None:
    """Returns what the function "module:function" says of an operation: an Estimate, microseconds, or None for no
    opinion.

    litz calls ``function(operation, target, program)``. Errors: CostFunctionError if there is no such function.
    """
    answer = _user_function(name)(operation, target, program)
    if answer is None or isinstance(answer, Estimate):
        return answer
    return Estimate(float(answer), float(answer), float(answer), f"by {name}")


@lru_cache(maxsize=8)
def _user_function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as cause:
        raise CostFunctionError(
            f"the option collectives.cost is {name!r}, which cannot be imported: {cause}",
            todo='name an importable function as "package.module:function"',
        ) from cause
    if not callable(found):
        raise CostFunctionError(f"the option collectives.cost is {name!r}, which is no function")
    return cast("Callable[..., Any]", found)


def _why(cost: Cost) -> str:
    return f"communication-bound: {cost.algorithm} {cost.protocol}, {cost.why}"
