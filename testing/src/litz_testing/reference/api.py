"""The pages of records, and of what plugins may import from litz. In: modules. Out: Markdown, from their docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import litz_plugins
from litz_plugins import records

from .fields import meanings
from .markdown import code, doc_of, page, signature_text, table


@dataclasses.dataclass(frozen=True)
class Module:
    """The names that plugins may import from a module. use: its purpose. names: split by spaces; '' for `__all__`."""

    name: str
    use: str
    names: str = ""


MODULES: Sequence[Module] = (
    Module("litz.backend", "to compile with a plugin that is not installed", "backend_with"),
    Module("litz.report", "what a compile made of a graph", "collect CompileReport Step"),
    Module(
        "litz.capture.joint",
        "what there is before a Graph, for passes and partitioners",
        "FXNoun TracedGraph JointGraph Halves",
    ),
    Module("litz.capture.graph", "the Graph, for graph passes", "Graph constant_of symbol_ranges"),
    Module(
        "litz.capture.passes.rewrite",
        "changing a Graph",
        "Call call_at Constant Changes rewrite tensor_of same_geometry same_layout",
    ),
    Module("litz_passes.escapes", "what leaves a Graph, for graph passes"),
    Module("litz_plugins.patterns", "finding calls in a Graph, a TracedGraph or a JointGraph"),
    Module(
        "litz.capture.decompositions",
        "core's rules, for a decomposition that leaves other cases to core's",
        "decompositions",
    ),
    Module(
        "litz.lower",
        "for lowerings",
        "LoweringContext Tensor View Computed elementwise reduce_over reduce_one broadcast_size device_of "
        "load_broadcast scalar operand result_type to_float to_int64 canonical_dim meta_size used reshape checked "
        "masked_load extents_of as_node compare at_least less_than inside all_of combined advanced along expand "
        "unsqueeze fallback lowering find_op",
    ),
    Module(
        "litz.ir",
        "the Program: buffers and operations",
        "Program Buffer Layout TensorRef Loop Range Store Extern Template KernelCall Collective Wait Check Unbacked "
        "Opaque Part Contraction",
    ),
    Module(
        "litz.ir.build",
        "making nodes",
        "const call cast bitcast index load bounded reduce scan guard logical_and not_empty",
    ),
    Module("litz.ir.node", "walking and rewriting nodes", "Node walk rewrite with_args uncast is_number"),
    Module("litz.ir.transform", "changing loops", "map_stores replace_loads rename_loop rename_nodes"),
    Module(
        "litz.ir.index",
        "sizes and positions, which are sympy expressions",
        "to_expr loop_var reduction_var placeholder product floordiv mod substitute stride_of bounds known_nonnegative "
        "known_less may_be_empty",
    ),
    Module(
        "litz.ir.combined", "scans by a function of two states, which `build.scan` takes by kind", "combined_kinds leaf"
    ),
    Module("litz.ir.dtypes", "types", "compute_dtype short least greatest survives"),
    Module("litz.ir.interpret", "running a Program with plain torch", "interpret"),
    Module("litz.ir.views", "for templates: operands as views", "position_in"),
    Module(
        "litz.ir.pattern",
        "finding loops by what they store, for templates and program passes",
        "Value Pattern Match match find bind fits STORED",
    ),
    Module("litz.schedule.choices", "for templates: what takes a contraction's place", "Replacement Recipe user_of"),
    Module("litz_triton_kernels.template", "for templates: a Triton kernel, of the dist litz-triton-kernels"),
    Module("litz.schedule.schedule", "the Schedule", "Schedule Kernel"),
    Module("litz.cost", "what operations cost"),
    Module("litz.target", "devices"),
    Module("litz.capture.torch_api", "what plugins may ask of torch's inside", "reset_with_dynamo known"),
    Module("litz.pipeline", "to look at the stages of a compile", "make_compiler schedule_only plan_schedule"),
)
"""These names stay, or are deprecated for two minor versions. Anything else of litz's may change."""


def records_page() -> str:
    """Returns the page on the records of `litz_plugins`, in the order of their files and lines."""
    found = {name: getattr(litz_plugins, name) for name in litz_plugins.__all__}
    names = [name for name, thing in found.items() if getattr(thing, "__module__", "").startswith(records.__name__)]
    about = doc_of(records).partition("\n\n")[2]
    lines = ["What hooks return and are handed: `from litz_plugins import ...`.", "", about, ""]
    for name in sorted(names, key=lambda name: (found[name].__module__, inspect.getsourcelines(found[name])[1])):
        lines += _entry(name, found[name], "##")
    return page("The records", *lines)


def api_page() -> str:
    """Returns the page on what plugins may import from litz, module by module."""
    links = ((f"[`{module.name}`](#{module.name.replace('.', '')})", module.use) for module in MODULES)
    lines = [
        "What a plugin may import from litz. These names stay, or are deprecated for two minor versions; anything else",
        "may change. What hooks return and take is in [records](records.md), from `litz_plugins`.",
        "",
        *table(("module", "is for"), links),
    ]
    for module in MODULES:
        found = importlib.import_module(module.name)
        lines += [f"## {module.name}", "", doc_of(found), ""]
        for name in module.names.split() or found.__all__:
            lines += _entry(name, getattr(found, name), "###")
    return page("What plugins may import", *lines)


def _entry(name: str, thing: Any, heading: str) -> Iterator[str]:
    """A class, a function or a value."""
    yield from (f"{heading} {name}", "")
    if inspect.isclass(thing):
        yield from _class(thing)
    elif inspect.isfunction(inspect.unwrap(thing)):
        yield from (code(f"{name}{signature_text(thing)}"), "", doc_of(thing), "")
    else:
        yield from (code(f"{name} = {thing!r}") if len(repr(thing)) < 200 else "A table.", "")


def _class(cls: type) -> Iterator[str]:
    base = cls.__mro__[1]
    said: Mapping[str, str] = {}
    if dataclasses.is_dataclass(cls):
        text, said = meanings(cls)
        yield from (text, "")
    else:
        yield from (doc_of(cls), "")
        if "__init__" in vars(cls):
            yield from (code(f"{cls.__name__}{signature_text(cls)}"), "")
    if dataclasses.is_dataclass(base):
        yield from (f"The fields of [{base.__name__}](#{base.__name__.lower()}), and:", "")
    if dataclasses.is_dataclass(cls):
        inherited = {each.name for each in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
        own = [each for each in dataclasses.fields(cls) if each.name not in inherited and each.name[0] != "_"]
        rows = ((code(f.name), code(str(f.type)), _default(f), said.get(f.name, "")) for f in own)
        yield from table(("field", "type", "default", "is"), rows)
    members = [(name, member) for name, member in vars(cls).items() if name[0] != "_" and _is_documented(member)]
    yield from table(("member", "is"), ((code(_called(name, member)), _doc(member)) for name, member in members))


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        text = getattr(field.default, "__name__", repr(field.default))
        return code("..." if text == "<lambda>" or " at 0x" in text or len(text) > 60 else text)
    if field.default_factory is dataclasses.MISSING:
        return ""
    name = field.default_factory.__name__
    return code("..." if name == "<lambda>" else f"{name}()")


def _function(member: Any) -> Any:
    inner = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", None)
    return inner or member


def _is_documented(member: Any) -> bool:
    """Methods that say what they do; properties always."""
    function = _function(member)
    return inspect.isfunction(function) and (function is not member or bool(doc_of(function)))


def _doc(member: Any) -> str:
    return doc_of(_function(member))


def _called(name: str, member: Any) -> str:
    function = _function(member)
    if function is not member and not isinstance(member, (staticmethod, classmethod)):
        return name  # a property
    return f"{name}{signature_text(function)}"
