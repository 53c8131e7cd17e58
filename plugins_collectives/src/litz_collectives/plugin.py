"""The hooks of litz-collectives: options, passes, the estimate of collectives and waits, commands."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litz_plugins import Estimate, Function, OptionSpec, OptionsView, Pass, Target, Uncacheable, hookimpl
from litz_plugins.errors import nearest

from .memory_limit import ACCEPTED, read_limit

if TYPE_CHECKING:
    from .model import Cost
    from .profile import Profile
    from .shared_builds import SharedBuilds

BENCHMARK = "benchmark"
"""The value of collectives.cost for which steps are measured (`step_times`)."""
FUNCTION = 'a function, or its path as "package.module:function"'
PASSES = ("overlap", "sink_waits", "raise_comms", "reorder_compute_for_overlap")


@hookimpl
def litz_register_options() -> Sequence[OptionSpec]:
    """Returns the options whose names begin with `collectives.`."""
    return [
        OptionSpec(
            "cost",
            str,
            None,
            "a function of your own, or its path, asked before litz's estimates; benchmark: steps are measured",
            check=_check_cost,
            accepts=f'{FUNCTION}, or "{BENCHMARK}"',
            functions=True,
        ),
        OptionSpec(
            "passes",
            tuple,
            ("overlap",),
            f"passes that move communication, in order: {', '.join(PASSES)}, or functions of your own",
            check=_check_passes,
            accepts=f"a list of some of {', '.join(PASSES)}, and of others each {FUNCTION}",
            functions=True,
        ),
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
            "pieces",
            int,
            1,
            "pieces of a product and its collective, to hide one behind the other; 1: none; 0: what pays by the model",
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


def _check_cost(text: str) -> None:
    if text != BENCHMARK:
        from .functions import check_path

        check_path(text)


def _check_passes(names: tuple[str, ...]) -> None:
    for name in names:
        if name not in PASSES and not isinstance(name, Function):
            near = nearest(name, PASSES)
            if ":" not in name:
                raise ValueError(f"there is no pass {name!r}" + (f"; did you mean {near!r}?" if near else ""))
            _check_cost(name)


@hookimpl
def litz_register_passes(options: OptionsView) -> Sequence[Pass]:
    """Returns the passes that collectives.passes names, in its order, between the order of steps and `reduce_in_place`,
    which litz-passes has; the check of the plan comes last. A function of the user's is a pass of stage "schedule"."""
    from .functions import function_of
    from .overlap_pass import overlap
    from .reorder import make_pass, rules
    from .verify import verify_plan, wanted

    passes = tuple(options.get("collectives.passes") or ())
    runs = {"overlap": overlap, **{name: make_pass(*rule) for name, rule in rules(passes).items()}}
    found: list[Pass] = []
    for number, name in enumerate(passes):
        run = runs[name] if name in runs else function_of("collectives.passes", name)
        alike = sum(other == str(name) for other in map(str, passes[:number]))
        label = f"{name} {alike + 1}" if alike and name not in runs else str(name)
        previous = tuple(one.name for one in found[-1:])
        after = ("part_segments", "order_steps?", *previous)
        found.append(Pass(label, "schedule", run, after, ("reduce_in_place?",)))
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
    """Returns the profile's content, what the user's functions are and, without a profile, the machine's links. Ranks
    that compare their plans all have to compile."""
    if options.get("collectives.verify_plan"):
        return Uncacheable("the ranks compare their plans while they compile (collectives.verify_plan)")
    path = options.get("collectives.profile")
    found = [path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""]
    for option, name in _functions(options):
        from .functions import identity_of

        identity = identity_of(option, name)
        if isinstance(identity, Uncacheable):
            return identity
        found.append(identity)
    if path is None and _communicates():
        from .topology import machine_topology

        found.append(repr(machine_topology()))
    return "\n".join(found)


def _functions(options: OptionsView) -> list[tuple[str, str]]:
    """The options that name functions of the user's, each with the function's path."""
    cost, passes = options.get("collectives.cost"), options.get("collectives.passes") or ()
    found = [("collectives.cost", cost)] if cost is not None and ":" in cost else []
    return found + [("collectives.passes", name) for name in passes if ":" in name]


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
    Collective: on a CPU only with a profile that the user names, as the model is NCCL's, or 0 in a group of one. A Wait
    takes no time of its own: what it waits for was counted where it started."""
    from litz.ir import Collective, Wait

    own = None if options is None else options.get("collectives.cost")
    if own is not None:
        found = _told(own, operation, target, program, options)
        if found is not None:
            return found
    if isinstance(operation, Wait):
        return Estimate(0.0, 0.0, 0.0, "a wait: its communication is counted where it starts")
    if not isinstance(operation, Collective):
        return None
    if len(operation.ranks) == 1:
        return Estimate(0.0, 0.0, 0.0, "a group of one rank: nothing is sent")
    if target.type == "cpu" and (options is None or options.get("collectives.profile") is None):
        return None  # no GPU's links stand in for those of a CPU
    cost = operation_cost(operation, program, chosen_profile(target, options))
    return None if cost is None else Estimate(cost.us, cost.low_us, cost.high_us, _why(cost))


def _told(own: str, operation: Any, target: Target, program: Any, options: OptionsView | None) -> Estimate | None:
    """Returns what the option collectives.cost says of an operation: a function, or an earlier measurement."""
    if own != BENCHMARK:
        return user_estimate(own, operation, target, program)
    from .step_times import known_time

    return known_time(operation, program, options, target.name)


def operation_cost(operation: Any, program: Any, profile: Profile) -> Cost | None:
    """Returns the cost of a Collective; None for an op that is not modelled or a group that is not known."""
    from .model import collective_cost
    from .traffic import message_of, placed

    message = message_of(operation, program)
    return None if message is None else collective_cost(placed(message, operation, profile.topology), profile)


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
    """Returns what the user's function says of an operation: an Estimate, microseconds, or None for no opinion.

    litz calls ``function(operation, target, program)``. Errors: OptionFunctionError if there is no such function.
    """
    from .functions import function_of

    answer = function_of("collectives.cost", name)(operation, target, program)
    if answer is None or isinstance(answer, Estimate):
        return answer
    return Estimate(float(answer), float(answer), float(answer), f"by {name}")


def _why(cost: Cost) -> str:
    return f"communication-bound: {cost.algorithm} {cost.protocol}, {cost.why}"
