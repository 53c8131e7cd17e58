"""What litz makes of softmax(x) @ w at each stage, for docs/softmax.md. In: nothing. Out: the text of each stage.

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
from litz_contractions import plugin as contractions
from litz_plugins import make_plugins

PAGE = Path(__file__).parents[1] / "docs" / "softmax.md"
MARK = re.compile(r"(<!-- stage: (\w+) -->\n```(\w+)\n)(.*?)(```)", re.DOTALL)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The function of the page."""
    return torch.softmax(x, dim=-1) @ w


def texts_of_stages() -> Mapping[str, str]:
    """The text of each noun, by its name on the page."""
    texts: dict[str, str] = {}
    plugins = make_plugins(builtin_plugins(), extra=[("contractions", contractions)], entry_points=())
    compiler = pipeline.make_compiler(None, {}, plugins)
    log = Log()

    def compile_graph(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        prepared = stages.prepare_graph(graph, compiler, log)
        program = stages.lower_graph(prepared, compiler, log)
        schedule = stages.schedule_program(prepared, program, compiler, log)
        plan = pipeline.plan_schedule(schedule, compiler, log)
        sources = pipeline.generate(plan, compiler, log.note)
        softmax, product = sources["kernel0"], sources["op7"]
        (contraction,) = log.contractions
        texts.update(
            graph=str(prepared),
            program=str(program),
            schedule=str(schedule),
            plan=str(plan),
            estimate="\n".join(f"{name}: {_said(estimate)}" for name, estimate in plan.estimates.items()),
            choice="\n".join(f"{each.name}: {each.verdict}" for each in contraction.implementations),
            softmax=softmax.text,
            product=product.text,
            wrapper=generate_wrapper(plan, sources).text,
            decisions="\n".join(f"{each.subject}: {each.chosen} ({each.reason})" for each in log.decisions),
        )
        return lambda args: torch.fx.Interpreter(graph.module).run(*args)

    with FakeTensorMode():
        sizes = (8, 4096), (4096, 50257)
        x, w = (torch.empty(size, dtype=torch.bfloat16, device="cuda") for size in sizes)
    torch._dynamo.reset()
    torch.compile(mixed, backend=partial(stages.capture, compile_graph=compile_graph, compiler=compiler))(x, w)
    return {name: text.strip("\n") + "\n" for name, text in texts.items()}


def _said(estimate: Any) -> str:
    return f"{estimate.us:.1f} µs, between {estimate.low_us:.1f} and {estimate.high_us:.1f}: {estimate.why}"


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with the text of each stage at its mark. KeyError: a mark names no stage."""
    return MARK.sub(lambda mark: f"{mark[1]}{texts[mark[2]]}{mark[5]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), texts_of_stages()), encoding="utf-8")
