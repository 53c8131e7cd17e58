"""CompileReport: what was made of one graph and why, as a record, and its JSON (`make_report` fills one).

A report is made once a compile, so its record is filled at once; times are microseconds and sizes bytes unless a name
says otherwise. `Step` and what hangs on it are plain numbers and strings, so that a report means something without the
compiler: `to_json` has all of it but the nouns themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litz.origins.operations import Frame
from litz_plugins import Decision, Estimate, Weighed
from litz_plugins.ledger import Entry

from .communication import rows_of
from .step import Step
from .streams import Realised, Timeline, simulate

if TYPE_CHECKING:
    from litz.execution import ExecutionPlan
    from litz.ir import Program
    from litz.runtime.graph_entry import GraphEntry
    from litz.schedule.implementations import ContractionRecord

JSON_VERSION = 1


@dataclass(frozen=True)
class CompileReport:
    """The record of what litz made of one graph.

    name, kind: of the graph ("inference", "forward", "backward"). device: what it runs on, as the cost model takes it.
    loops_before, kernels_after: before and after fusion. externs: how often each library op is called. memory_*: of
    temporaries and outputs, for the sizes seen. stage_seconds: wall time of each compile stage. *_sources: generated
    text by kernel. folder: that the report was written to, None without the option `report_dir`. cache_hits: kernels
    that were not built because the cache had them, if only since they were tuned a moment ago. contractions: what runs
    each, and why nothing else does. attachments: what plugins add, file name -> text. realised: measured times of
    collectives by step, where someone profiled a run. taken, left_out: keys of the decisions that the option `veto` can
    leave out, and of those that it did. weighed: by key, the decisions that have estimates, with what each way was
    expected to take. graph_cache: "hit KEY", "miss KEY", "not cacheable because ..." or "off"; key: of the graph cache.
    frame: the code that dynamo traced. calls: what calls of plugins took, by plugin, hook and pass. noted: what plugins
    say of the passes of the variant that runs (`litz_watch_graph`). memory_held: bytes during each step, with inputs
    that die here. plan, program, code: the nouns, and what they became as data; None for a graph from the graph cache.
    """

    name: str  # of the graph, "graph0_inference"
    kind: str  # of the graph: "inference", "forward" or "backward"
    device: str
    steps: tuple[Step, ...]  # in the order in which they run
    loops_before: int  # how many, before fusion
    kernels_after: int  # how many, after fusion
    externs: Counter[str]
    decisions: tuple[Decision, ...] = ()  # all that were put on record
    contractions: tuple[ContractionRecord, ...] = ()
    memory_peak_bytes: int = 0  # the most at a time
    memory_total_bytes: int = 0  # of all, as if none were reused
    memory_reused: int = 0  # how many buffers lie where others have died
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    wrapper_path: Path | None = None  # the file of the wrapper
    wrapper_source: str = ""  # the text of the wrapper
    folder: Path | None = None
    kernel_paths: Mapping[str, Path] = field(default_factory=dict)  # the file of each kernel
    kernel_sources: Mapping[str, str] = field(default_factory=dict)
    cache_hits: int = 0
    plugins: tuple[str, ...] = ()  # names of those that took part
    attachments: Mapping[str, str] = field(default_factory=dict)
    realised: Mapping[str, Realised] = field(default_factory=dict)
    taken: tuple[str, ...] = ()  # keys of the decisions that the option `veto` can leave out
    left_out: tuple[str, ...] = ()  # keys of the decisions that `veto` did leave out
    weighed: Mapping[str, Weighed] = field(default_factory=dict)
    graph_cache: str = ""
    frame: Frame = field(default_factory=Frame)
    calls: tuple[Entry, ...] = ()
    memory_held: tuple[int, ...] = ()
    noted: tuple[Any, ...] = ()
    key: Any = None
    plan: ExecutionPlan | None = None  # None for a graph from the graph cache
    program: Program | None = None  # None for a graph from the graph cache
    code: GraphEntry | None = None  # the plan as data

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        """Returns the estimate of each step that has one, by the step's name."""
        return {step.name: step.estimate for step in self.steps if step.estimate is not None}

    @cached_property
    def total_us(self) -> float:
        """Returns the sum of the steps' estimates, in µs."""
        return sum((step.us for step in self.steps), 0.0)

    def cost(self, step: Step) -> float:
        """Returns what a step costs: microseconds, or bytes in a report without times."""
        return step.us if self.timed else step.bytes

    @property
    def timed(self) -> bool:
        """Returns whether the estimates add up to more than 0. A CPU that was never measured has none."""
        return self.total_us > 0

    @property
    def total_bytes(self) -> float:
        """Returns the bytes that all steps read and write."""
        return sum((step.bytes for step in self.steps), 0.0)

    @cached_property
    def timeline(self) -> Timeline:
        """Returns the steps on their streams, one after the other on each."""
        return simulate(self.steps)

    @property
    def compile_seconds(self) -> float:
        """Returns the wall time of all stages, in seconds."""
        return sum(self.stage_seconds.values())

    @property
    def communicates(self) -> bool:
        """Returns whether the graph has collectives."""
        return any(step.kind == "collective" for step in self.steps)

    @property
    def shows_communication(self) -> bool:
        """Returns whether there are collectives with times, estimated or measured."""
        return self.communicates and (self.timed or bool(self.realised))

    def to_json(self) -> dict[str, Any]:
        """Returns everything but the nouns, as JSON has it. "format" and "version" say how to read the result."""
        return {
            "format": "litz-report",
            "version": JSON_VERSION,
            "name": self.name,
            "kind": self.kind,
            "device": self.device,
            "loops_before": self.loops_before,
            "kernels_after": self.kernels_after,
            "externs": dict(self.externs),
            "total_us": self.total_us,
            "memory": {
                "peak_bytes": self.memory_peak_bytes,
                "total_bytes": self.memory_total_bytes,
                "reused": self.memory_reused,
                "held_bytes": list(self.memory_held),
            },
            "frame": asdict(self.frame),
            "calls": [asdict(entry) for entry in self.calls],
            "noted": [asdict(note) for note in self.noted],
            "steps": [asdict(step) for step in self.steps],
            "communication": self._communication(),
            "contractions": [asdict(record) for record in self.contractions],
            "decisions": [asdict(decision) for decision in self.decisions],
            "stage_seconds": dict(self.stage_seconds),
            "wrapper_path": None if self.wrapper_path is None else str(self.wrapper_path),
            "kernel_paths": {name: str(path) for name, path in self.kernel_paths.items()},
            "cache_hits": self.cache_hits,
            "plugins": list(self.plugins),
            "attachments": dict(self.attachments),
            "taken": list(self.taken),
            "left_out": list(self.left_out),
            "weighed": [{**asdict(found), "margin": found.margin} for found in self.weighed.values()],
            "graph_cache": self.graph_cache,
        }

    def _communication(self) -> list[dict[str, Any]]:
        rows = []
        for row in rows_of(self):
            data = {"step": row.step.name, "op": row.step.what, "us": row.us, "exposed_us": row.exposed_us}
            rows.append(data if row.realised is None else data | {"realised": asdict(row.realised)})
        return rows
