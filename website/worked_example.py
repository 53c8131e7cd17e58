"""What litz makes of softmax at each stage, for docs/softmax.md. In: nothing. Out: the text of each stage.

`python -m website.worked_example` puts the texts into the page; a test compares them with the page. The tensors are
fake ones of an H100, so that the texts are equal on every machine, with a GPU and without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from litz import pipeline
from litz.capture.graph import Graph
from litz.codegen.wrapper import generate_wrapper
from litz.driver import stages
from litz.driver.builtin import builtin_plugins
from litz.report.log import Log
from litz_plugins import make_plugins

PAGE = Path(__file__).parents[1] / "docs" / "softmax.md"
MARK = re.compile(r"(<!-- stage: (\w+) -->\n```(\w+)\n)(.*?)(```)", re.DOTALL)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The function of the page."""
    return torch.softmax(x, dim=-1)


def texts_of_stages() -> Mapping[str, str]:
    """The text of each noun, by its name on the page."""
    texts: dict[str, str] = {}
    compiler = pipeline.make_compiler(None, {}, make_plugins(builtin_plugins(), entry_points=()))
    log = Log()

    def compile_graph(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        lowered = stages.lower_graph(graph, compiler, log)
        schedule = stages.schedule_lowered(lowered, compiler, log)
        plan = pipeline.plan_schedule(schedule, compiler, log)
        sources = pipeline.generate(plan, compiler, log.note)
        (kernel,) = sources.values()
        (estimate,) = plan.estimates.values()
        texts.update(
            graph=str(lowered.graph),
            program=str(lowered.program),
            schedule=str(schedule),
            plan=str(plan),
            estimate=f"{estimate.us:.1f} µs, between {estimate.low_us:.1f} and {estimate.high_us:.1f}: {estimate.why}",
            kernel=kernel.text,
            wrapper=generate_wrapper(plan, sources).text,
            decisions="\n".join(f"{each.subject}: {each.chosen} ({each.reason})" for each in log.decisions),
        )
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    with FakeTensorMode():
        x = torch.empty(4096, 1024, dtype=torch.bfloat16, device="cuda")
    torch._dynamo.reset()
    torch.compile(softmax, backend=partial(stages.capture, compile_graph=compile_graph, compiler=compiler))(x)
    return {name: text.strip("\n") + "\n" for name, text in texts.items()}


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with the text of each stage at its mark. KeyError: a mark names no stage."""
    return MARK.sub(lambda mark: f"{mark[1]}{texts[mark[2]]}{mark[5]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), texts_of_stages()), encoding="utf-8")
