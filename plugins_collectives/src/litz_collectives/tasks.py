"""Steps of a schedule as what the streams do. In: steps, their estimates, the profile. Out: `Task`s for `streams`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from litz.ir import Collective, Program, Wait
from litz.ir.communication import flights
from litz.ir.operation import storage_roots
from litz.schedule.schedule import Kernel, Step
from litz_plugins import Estimate, PassContext

from .contention import Contention
from .model import collective_cost
from .nccl import Message
from .plugin import BENCHMARK, chosen_profile
from .profile import Profile, builtin_profile
from .streams import NOTHING, Interval, Slowdown, Task
from .traffic import message_of, nodes_under

SLOWDOWN = Slowdown(Interval(1.0, 1.25, 1.42), Interval(1.0, 1.1, 1.2))
"""Where nothing was measured: what four H200s showed. A matrix product ran 1.1 to 1.42 times as long beside collectives
of 1 to 128 MiB, a copy up to 1.16 times; the collectives, beyond waiting to get in, 1.1 to 1.2 times."""
BESIDE_COPY = 1.5
"""How many times longer a collective takes beside kernels that are bound by memory, at least: profiles have what it
takes beside matrix products. Of 131 collectives in training steps on four H200s (`tests/collectives/data`), by least
squares: 1.54, and 1.23 beside products."""
MEASURED = 0.3
"""What was measured with a large matrix product and a large copy goes for other kernels within this share."""

SlowdownOf = Callable[[Collective], Slowdown]


def slowdown_of(step: Collective, program: Program, context: PassContext) -> Slowdown:
    """Returns what a collective and kernels at a time cost each other: as the profile says, which measured both with
    matrix products and with copies; where it says nothing, `SLOWDOWN`."""
    message = message_of(step, program)
    profile = chosen_profile(context.target_of(step.device), context.options)
    table = profile.contention or builtin_profile().contention
    if message is None or not table:
        return SLOWDOWN
    found = profile.slowdown(message.kind, max(1, message.bytes))
    # A profile with delays has the factor apart from them. The delay itself is what `Streams` lets pass: a kernel.
    own = found.collective if found.delay_us else _growth(message, table.get(message.kind, ()), profile)
    return Slowdown(*map(_around, (found.gemm, own, found.copy, max(own, BESIDE_COPY))))


def _growth(message: Message, rows: Sequence[Contention], profile: Profile) -> float:
    """Returns how many times longer a collective runs beside kernels, of a profile without delays. What was measured
    has the time in it that each waited for a kernel to end, however large it is; so this is how much longer the largest
    took than the next, beside kernels and alone."""
    if len(rows) < 2:
        return rows[0].collective if rows else SLOWDOWN.collective.us
    less, more = (collective_cost(replace(message, bytes=int(row.bytes)), profile).us for row in rows[-2:])
    beside = more * rows[-1].collective - less * rows[-2].collective
    return min(max(1.0, beside / max(more - less, 1e-9)), rows[-1].collective)


def _around(factor: float) -> Interval:
    """A factor with the error bar of `MEASURED`."""
    return Interval(1 + (factor - 1) * (1 - MEASURED), factor, 1 + (factor - 1) * (1 + MEASURED))


def estimates_of(steps: Sequence[Step], program: Program, context: PassContext) -> dict[str, Estimate]:
    """Returns the expected times by the names of steps, for steps that somebody knows a time of. With collectives.cost
    = "benchmark" steps that compute are measured, as far as they can be."""
    found = {step.name: context.estimate(step, context.target_of(step.device), program) for step in steps}
    known = {name: estimate for name, estimate in found.items() if estimate is not None}
    if context.options.get("collectives.cost") == BENCHMARK:
        from .step_times import measured_steps

        known |= measured_steps([one for one in steps if not isinstance(one, (Collective, Wait))], program, context)
    return known


def link_of(step: Collective, context: PassContext) -> str:
    """Returns what a collective sends over, the links of a host or the network: collectives share it."""
    profile = chosen_profile(context.target_of(step.device), context.options)
    return "network" if nodes_under(step.ranks, profile.topology) > 1 else "host"


def make_tasks(
    steps: Sequence[Step],
    estimates: Mapping[str, Estimate],
    slowdown: SlowdownOf = lambda step: SLOWDOWN,
    link: Callable[[Collective], str] = lambda step: "",
    met: Callable[[Collective], bool] = lambda step: False,
) -> list[Task]:
    """Steps as what the streams do; each process group has a stream. met: as in `Task`. A wait for communication that
    started elsewhere counts as computation that takes no time, so that it stays where it is."""
    ended = flights(steps, storage_roots(steps)).ended
    tasks = []
    for number, step in enumerate(steps):
        found = estimates[step.name]
        time = Interval(found.low_us, found.us, min(found.high_us, 10 * found.us))
        if isinstance(step, Collective):
            cost = slowdown(step)
            task = Task(step.name, "start", time, slowdown=cost, stream=step.group, link=link(step), met=met(step))
            tasks.append(task)
        elif number in ended:
            tasks.append(Task(step.name, "wait", NOTHING, ended[number][-1].name))
        else:
            tasks.append(Task(step.name, "compute", time, memory_bound=isinstance(step, Kernel)))
    return tasks
