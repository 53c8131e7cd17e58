"""A plugin of litz: other ways to run two kinds of matrix product, and the choice of them.

An outer product (n x 1 by 1 x m) as a loop, which fuses with what is around it; a product of float16 on a CPU by the
library's product of float32, which is quicker and more exact.
"""

from __future__ import annotations

from litz_plugins import TemplateSpec, hookimpl

REASONS = {
    "outer product as a loop": "as many multiplications as results, and a loop fuses",
    "float16 by float32": "the library has fast kernels for float32, and a plain loop for float16 on this processor",
}
"""The choices by name, and why each is taken wherever it is offered."""


@hookimpl
def litz_register_templates(options):
    # Here, since `litz plugins` and the like load the plugin and need no compiler.
    from .halves import offer_halves
    from .outer import offer_outer

    return [
        TemplateSpec("my_template_outer", ("mm",), offer_outer),
        TemplateSpec("my_template_halves", ("mm",), offer_halves),
    ]


@hookimpl
def litz_select_choice(choices, context):
    """Returns this plugin's choice wherever there is one; None leaves other contractions to the next plugin."""
    for choice in choices:
        if choice.name in REASONS:
            context.record(choice.name, REASONS[choice.name], plugin="my_template")
            return choice
    return None
