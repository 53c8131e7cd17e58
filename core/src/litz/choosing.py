"""What runs each contraction. In: a Program, what all stages of a compile share, and its log. Out: the Program with
every contraction decided; a `ContractionRecord` of each in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from litz.compiler import Compiler
from litz.ir import Operation, Program, Template
from litz.ir.verify import verify
from litz.report.log import Log
from litz.schedule.choices import choose_templates, fits
from litz.schedule.fusion_size import most_operations
from litz.schedule.implementations import Hearing, make_records
from litz_plugins import Choice, ChoiceContext, Estimate, TemplateSpec


def choose_contractions(program: Program, compiler: Compiler, log: Log) -> Program:
    """Library or template, for each contraction."""
    choosing = _Choosing(compiler, log, compiler.plugins.templates(compiler.options))
    chosen = choose_templates(program, choosing.offer, choosing.select, log.note, choosing.account, log.gate)
    if compiler.options.debug and chosen is not program:
        verify(chosen)
    return chosen


@dataclass
class _Choosing:
    """heard: what was said of each contraction, by name."""

    compiler: Compiler
    log: Log
    templates: Sequence[TemplateSpec]
    heard: dict[str, Hearing] = field(default_factory=dict)

    def offer(self, operation: Template, program: Program) -> list[Choice]:
        """What the templates offer."""
        heard = self.heard[operation.name] = Hearing(operation.name)
        context, made = self._context(operation, program), list[Choice]()
        for spec in self._fitting(operation):
            with heard.from_template(spec.name) as offers:
                offers += spec.make_choices(operation, context)
            made += offers
        most, small = most_operations(self.compiler.options), list[Choice]()
        for choice in made:
            if fits(choice, operation, program, most):
                small.append(choice)
            else:
                heard.verdict(choice.name, f"it does more than {most} nodes of the graph (max_fusion_size)")
        return small

    def select(self, operation: Template, program: Program, choices: Sequence[Choice]) -> tuple[str, Choice] | None:
        """What the plugins choose."""
        if not self._fitting(operation):
            return None
        return self.compiler.plugins.select_choice(choices, self._context(operation, program))

    def account(
        self, operation: Template, program: Program, choices: Sequence[Choice], chosen: Choice, plugin: str
    ) -> None:
        """Put on record what became of all choices."""
        library = self._context(operation, program).estimate(operation)
        heard = self.heard[operation.name]
        self.log.contractions += make_records(operation, program, choices, chosen, plugin, heard, library)

    def _fitting(self, operation: Template) -> list[TemplateSpec]:
        return [spec for spec in self.templates if operation.kind in spec.kinds]

    def _context(self, operation: Template, program: Program) -> ChoiceContext:
        compiler, log, heard = self.compiler, self.log, self.heard[operation.name]
        target = compiler.target_of(operation.device)

        def estimate(operation: Operation) -> Estimate | None:
            return compiler.plugins.estimate_runtime(operation, target, program, compiler.options)

        return ChoiceContext(
            operation,
            target,
            compiler.options,
            program,
            compiler.cache,
            note=heard.listen(log.note),
            attach=log.attachments.__setitem__,
            estimate=estimate,
            verdict=heard.verdict,
            unsettled=log.unsettled.append,
        )


__all__ = ["choose_contractions"]
