"""A plugin of litz: a Triton kernel for a product with a thin matrix, and for the SiLU of its result."""

from __future__ import annotations

from litz_plugins import TemplateSpec, hookimpl


@hookimpl
def litz_register_templates(options):
    # Here, since `litz plugins` and the like load the plugin and need no compiler.
    from .offer import offer_thin

    return [TemplateSpec("my_gpu_template_thin", ("mm",), offer_thin)]


@hookimpl
def litz_select_choice(choices, context):
    """Returns the plugin's choice that does most, where nothing is measured; None for other contractions."""
    own = [choice for choice in choices if choice.name.startswith("thin product")]
    if not own or context.options["max_autotune"]:
        return None  # litz-autotune measures all of them
    context.record(own[-1].name, "the library's tiles are eight times as wide as the matrix", plugin="my_gpu_template")
    return own[-1]
