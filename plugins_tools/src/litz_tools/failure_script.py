"""A Graph as a Python script that compiles it again: what an error message points to.

In: a Graph that failed to compile, and the error. Out: a file with a script without dynamo's or the user's code in it:
the ATen graph as a module, inputs of the same sizes, strides and dtypes (with values of its own), and the call of
torch.compile.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from litz.cache.disk import folder_for_texts
from litz.capture import torch_api
from litz.capture.graph import Graph
from litz.errors import LitzError
from litz.options import Options
from litz_plugins import Secret

MAX_LISTED = 64
"""Elements of a constant that are written out; a larger one gets other values."""

HEAD = '''"""{title}

litz could not compile this graph. Run this file to see it fail again: python {path}
{problem}
"""

from math import inf, nan  # as constants are written

import torch
{imports}{modules}

def tensor(size, stride, dtype, device):
    """Any tensor of this geometry; whole numbers are 0 or 1, so that they can be indices."""
    count = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else 0
    real = dtype.is_floating_point or dtype.is_complex
    flat = torch.randn(count) if real else torch.randint(0, 2, (count,))
    return flat.to(dtype).to(device).as_strided(size, stride)


'''

TAIL = """

if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = [
        {inputs}
    ]
    with torch.no_grad():
        torch.compile({name}(), backend="litz", fullgraph=True{settings})(*inputs)
    print("compiled and ran")
"""


NOT_REPEATED = frozenset({"cache", "cache_dir", "fallback", "progress", "report_dir", "threads"})
"""Options that decide where things lie and what is done about a failure, and not what fails."""


def write_script(graph: Graph, failure: LitzError, options: Options) -> str | None:
    """Writes a script beside the cache, and returns the command that runs it; None where there can be none: that must
    not hide the error that the script is about."""
    try:
        path = folder_for_texts(options.cache_dir) / f"{graph.name}.py"
        path.write_text(graph_script(graph, str(path), str(failure), changed_options(options)), encoding="utf-8")
    except Exception:
        return None
    return f"{sys.executable or 'python'} {path}"


def changed_options(options: Options) -> Mapping[str, Any]:
    """Returns the options that are not at their defaults and that a failure may depend on."""
    found = {row.name: value for row, value in options.changed() if row.name not in NOT_REPEATED}
    plugins = {name: options[name] for name in options.plugin_changed}
    return found | {name: value for name, value in plugins.items() if not isinstance(value, Secret)}


def graph_script(graph: Graph, path: str, problem: str, options: Mapping[str, Any]) -> str:
    """The script. path: where it will lie. problem: the error's message. options: for torch.compile's `options=`.

    NotImplementedError for what a script cannot hold: script objects, constants inside of submodules' submodules.
    """
    classes: list[str] = []
    imports: dict[str, None] = {}
    name = _write_class(graph.module, "Graph", classes, imports)
    inputs = ",\n        ".join(_value(node.meta.get("val")) for node in graph.placeholders)
    settings = ", dynamic=True" if graph.hints else ""
    settings += f", options={dict(options)!r}" if options else ""
    quoted = problem.replace("\\", "\\\\").replace('"""', "'''")
    title = f"{graph.name} ({graph.kind}), as litz got it."
    head = HEAD.format(
        title=title,
        path=path,
        problem=quoted,
        imports="".join(f"{line}\n" for line in imports),
        modules="".join(f"{line}\n" for line in _definitions(graph.module)),
    )
    return head + "\n\n".join(classes) + TAIL.format(inputs=inputs, name=name, settings=settings)


def _definitions(module: torch.fx.GraphModule) -> list[str]:
    """The lines that define the custom ops that a module and its submodules call: imports of the modules that do so,
    and a comment for each op of which nobody knows where it is defined."""
    parts = [part for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    found = {str(node.target): node.target for part in parts for node in part.graph.nodes}
    custom = {name: torch_api.defining_module(op) for name, op in found.items() if torch_api.is_custom(op)}
    modules = sorted({name for name in custom.values() if name})
    files = [getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) for name in modules]
    roots = sorted({str(Path(file).parents[Path(file).name == "__init__.py"]) for file in files if file})
    lines = ["", "import sys", ""] if roots else []
    lines += [f"sys.path.append({root!r})" for root in roots]
    lines += [f"import {name}  # defines custom ops" for name in modules]
    unknown = "is an op that torch does not say the module of: unless it is torch's own, import that module here"
    return lines + [f"# {name} {unknown}" for name, where in sorted(custom.items()) if not where]


def _write_class(module: torch.fx.GraphModule, name: str, classes: list[str], imports: dict[str, None]) -> str:
    """Append the text of a class like `module`, those of its submodules before it, and what they import; its name."""
    code = module.graph.python_code("self")
    # FX keeps the objects that its text names in a dict; here they are imported or, being numbers, written.
    for key, value in code.globals.items():
        if key not in ("torch", "inf", "nan") and re.search(rf"\b{re.escape(key)}\b", code.src):
            imports[_import(key, value)] = None
    lines = [f"class {name}(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    for target in dict.fromkeys(str(node.target) for node in module.graph.find_nodes(op="get_attr")):
        value = getattr(module, target)  # AOTAutograd puts constants and subgraphs right into the module
        if isinstance(value, torch.fx.GraphModule):
            text = _write_class(value, f"{name}_{target}", classes, imports) + "()"
        else:
            text = _value(value)
        lines.append(f"        self.{target} = {text}")
    body = "\n".join("    " + line if line.strip() else "" for line in code.src.strip().splitlines())
    classes.append("\n".join([*lines, "", body, ""]))
    return name


def _import(name: str, value: Any) -> str:
    """A line that makes `name` what it is in FX's text."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}"
    if value is type(None):
        return f"{name} = type(None)"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualified or "." in qualified:
        raise NotImplementedError(f"{name} = {value!r}")
    return f"from {module} import {qualified}{'' if qualified == name else f' as {name}'}"


def _value(value: Any) -> str:
    """An expression for an input or a constant."""
    if isinstance(value, torch.Tensor):
        if not torch_api.is_fake(value) and value.numel() <= MAX_LISTED and value.layout == torch.strided:
            return f"torch.tensor({value.tolist()!r}, dtype={value.dtype}, device='{value.device}')"
        size, stride = _numbers(value.shape), _numbers(value.stride())
        return f"tensor({size}, {stride}, {value.dtype}, '{value.device}')"
    if isinstance(value, torch.SymInt):
        return str(torch_api.hint_of(value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise NotImplementedError(f"a {type(value).__name__}")


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(torch_api.hint_of(value) for value in values)
