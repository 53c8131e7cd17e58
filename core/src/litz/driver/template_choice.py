"""What runs each contraction. In: a Program, what all stages of a compile share, and its log. Out: the Program with
every contraction decided; a `ContractionRecord` of each in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from litz.driver.compiler import Compiler
from litz.ir import Operation, Program, Template
from litz.ir.promised import check_promises
from litz.ir.verify import verify
from litz.report.log import Log
from litz.schedule.choices import choose_templates, fits, replacement_of, substituted
from litz.schedule.fusion_size import most_operations
from litz.schedule.implementations import Hearing, make_records
from litz.schedule.owned import owned_choice
from litz_plugins import Choice, ChoiceContext, Estimate, TemplateSpec


def choose_contractions(program: Program, compiler: Compiler, log: Log) -> Program:
    """Returns the program with what runs each contraction: the library's call, or the operations of a choice. Decisions
    and reasons go to `log`."""
    choosing = _Choosing(compiler, log, compiler.plugins.templates(compiler.options))
    hooks = (choosing.offer, choosing.select, log.note, choosing.account, log.gate)
    chosen = choose_templates(program, *hooks, substitute=choosing.substitute)
    if compiler.options.debug and chosen is not program:
        verify(chosen)
    return chosen


@dataclass
class _Choosing:
    """heard: what was said of each contraction, by name. offered: by which plugin each choice is, by its identity."""

    compiler: Compiler
    log: Log
    templates: Sequence[TemplateSpec]
    heard: dict[str, Hearing] = field(default_factory=dict)
    offered: dict[int, str] = field(default_factory=dict)

    def offer(self, operation: Template, program: Program) -> list[Choice]:
        """Returns what the templates offer for a contraction."""
        heard = self.heard[operation.name] = Hearing(operation.name)
        context, made = self._context(operation, program), list[Choice]()
        for spec in self._fitting(operation):
            first = len(made)
            with heard.from_template(spec.name) as offers:
                offers += self._owned(spec.plugin, spec.make_choices(operation, context))
            made += offers
            self.offered |= {id(choice): spec.plugin for choice in made[first:]}
        most, small = most_operations(self.compiler.options), list[Choice]()
        for choice in made:
            if fits(choice, operation, program, most):
                small.append(choice)
            else:
                heard.verdict(choice.name, f"the kernel does more than {most} nodes of the graph (max_fusion_size)")
        return small

    def _owned(self, plugin: str, choices: Sequence[Choice]) -> Sequence[Choice]:
        """The choices, those of a plugin marked as that plugin's."""
        if self.compiler.plugins.is_builtin(plugin):
            return choices
        return [owned_choice(choice, self.compiler.owner(plugin)) for choice in choices]

    def substitute(self, program: Program, template: Template, choice: Choice) -> Program:
        """The program with a choice in the contraction's place. A choice that does not do what the contraction does is
        the failure of the plugin that offered it."""
        plugin = self.offered.get(id(choice), "")
        with self.compiler.plugins.blaming(plugin, f"choice {choice.name!r} for {template.name}", node=template.name):
            found = substituted(program, template, replacement_of(choice))
            check_promises(program, found)
            if plugin and not self.compiler.plugins.is_builtin(plugin):
                verify(found)
        return found

    def select(self, operation: Template, program: Program, choices: Sequence[Choice]) -> tuple[str, Choice] | None:
        """Returns the plugin that chose and its choice; None where no plugin chooses, and the estimate decides."""
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
