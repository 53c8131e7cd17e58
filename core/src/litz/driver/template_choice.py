"""What runs each contraction. In: a Program, what all stages of a compile share, and its log. Out: the Program with
every contraction decided; a `ContractionRecord` of each in the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.driver.compiler import Compiler
from litz.ir import Operation, Program, Template
from litz.ir.promised import check_promises
from litz.ir.verify import verify
from litz.report.log import Log
from litz.schedule.choices import decide, decision_of, fits, replacement_of, substituted
from litz.schedule.fusion_size import most_operations
from litz.schedule.implementations import Hearing, make_records
from litz.schedule.owned import owned_choice
from litz_plugins import Choice, ChoiceContext, Estimate, TemplateSpec


def choose_contractions(program: Program, compiler: Compiler, log: Log) -> Program:
    """Returns the program with what runs each contraction: the library's call, or the operations of a choice. Decisions
    and reasons go to `log`. Each contraction is decided for the program as the earlier ones left it."""
    templates, given = compiler.plugins.templates(compiler.options), program
    for name in [operation.name for operation in program.operations if isinstance(operation, Template)]:
        template = next((op for op in program.operations if op.name == name), None)
        if isinstance(template, Template):  # else a choice for an earlier one has absorbed it
            fitting = [spec for spec in templates if template.kind in spec.kinds]
            program = _choose(template, program, fitting, compiler, log)
    if compiler.options.debug and program is not given:
        verify(program)
    return program


def _choose(
    template: Template, program: Program, fitting: Sequence[TemplateSpec], compiler: Compiler, log: Log
) -> Program:
    """The program with one contraction decided. fitting: the templates for its kind."""
    heard = Hearing(template.name)
    context = _context(template, program, heard, compiler, log)
    library = Choice(template.target_name, "extern", template)
    offers, owners = _offers(template, program, fitting, context, heard, compiler)
    choices = (library, *offers)
    selected = compiler.plugins.select_choice(choices, context) if fitting else None
    made = chosen, plugin, _ = decide(template, choices, selected, log.gate)
    log.contractions += make_records(template, program, choices, chosen, plugin, heard, context.estimate(template))
    if offers:
        log.note(decision_of(template, choices, made, log.gate))
    return program if chosen is library else _put_in(chosen, template, program, owners.get(id(chosen), ""), compiler)


def _offers(
    template: Template,
    program: Program,
    fitting: Sequence[TemplateSpec],
    context: ChoiceContext,
    heard: Hearing,
    compiler: Compiler,
) -> tuple[list[Choice], dict[int, str]]:
    """Returns what the templates offer for a contraction, and each choice's plugin by the choice's identity."""
    made, owners = list[Choice](), dict[int, str]()
    for spec in fitting:
        with heard.from_template(spec.name) as offers:
            offers += _owned(spec.plugin, spec.make_choices(template, context), compiler)
        made += offers
        owners |= {id(choice): spec.plugin for choice in offers}
    most = most_operations(compiler.options)
    for choice in made:
        if not fits(choice, template, program, most):
            heard.verdict(choice.name, f"the kernel does more than {most} nodes of the graph (max_fusion_size)")
    return [choice for choice in made if fits(choice, template, program, most)], owners


def _owned(plugin: str, choices: Sequence[Choice], compiler: Compiler) -> Sequence[Choice]:
    """The choices, those of a plugin marked as that plugin's."""
    if compiler.plugins.is_builtin(plugin):
        return choices
    return [owned_choice(choice, compiler.owner(plugin)) for choice in choices]


def _put_in(choice: Choice, template: Template, program: Program, plugin: str, compiler: Compiler) -> Program:
    """The program with a choice in the contraction's place. A choice that does not do what the contraction does is the
    failure of the plugin that offered it."""
    what = f"choice {choice.name!r} for {template.name}"
    try:
        with compiler.plugins.blaming(plugin, what, node=template.name):
            found = substituted(program, template, replacement_of(choice))
            check_promises(program, found)
            if plugin and not compiler.plugins.is_builtin(plugin):
                verify(found)
            return found
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what}: {error}") from error


def _context(template: Template, program: Program, heard: Hearing, compiler: Compiler, log: Log) -> ChoiceContext:
    target = compiler.target_of(template.device)

    def estimate(operation: Operation) -> Estimate | None:
        return compiler.plugins.estimate_runtime(operation, target, program, compiler.options)

    return ChoiceContext(
        template,
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
