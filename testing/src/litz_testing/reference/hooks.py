"""The page of hooks. In: `litz_plugins.hookspecs`, whose docstrings have a form that tests hold, and the table of
`litz_plugins.calls`. Out: Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

from litz_plugins import calls, hookspecs
from litz_plugins.calls import CALLS, since
from litz_plugins.validate import HOOKS

from .markdown import code, doc_of, page, table

_PARTS = re.compile(r"(?:^|(?<=[.:] )|(?<=\n))(Called|Combined|Returns): ")


@dataclass(frozen=True)
class Hook:
    """A hook as its docstring says it. about: what the hook is for. arguments: each with its meaning. notes: what
    else there is to say. returned: the return type."""

    name: str
    about: str
    since: str
    called: str
    combined: str
    returned: str
    returns: str
    arguments: Mapping[str, str]
    types: Mapping[str, str]
    notes: str

    @property
    def signature(self) -> str:
        """Returns the hook's name with its parameters."""
        return f"{self.name}({', '.join(self.types)})"


def read_hook(name: str) -> Hook:
    """Returns a hook by its name. Raises ValueError where the docstring lacks a part."""
    signature = inspect.signature(getattr(hookspecs, name))
    types = {each.name: str(each.annotation) for each in signature.parameters.values()}
    paragraphs = doc_of(getattr(hookspecs, name)).split("\n\n")
    about, _, _ = paragraphs[0].partition(" Since ")
    parts: dict[str, str] = {}
    arguments: dict[str, str] = {}
    notes = []
    for paragraph in paragraphs[1:]:
        first, *others = _PARTS.split(paragraph)
        parts |= dict(zip(others[::2], (_line(text) for text in others[1::2]), strict=True))
        found = _arguments(first, list(types))
        arguments |= found
        if first.strip() and not found:
            notes.append(first.strip())
    lacking = [word for word in ("Called", "Combined") if word not in parts]
    lacking += [argument for argument in types if argument not in arguments]
    if lacking:
        raise ValueError(f"the docstring of {name} does not say {', '.join(lacking)}")
    returned = "" if signature.return_annotation == "None" else str(signature.return_annotation)
    return Hook(
        name,
        about,
        since(name),
        parts["Called"],
        parts["Combined"],
        returned,
        parts.get("Returns", ""),
        arguments,
        types,
        "\n\n".join(notes),
    )


def _arguments(text: str, names: list[str]) -> dict[str, str]:
    """Returns what a paragraph of the form "one: what it is. two, three: what these are." says of each."""
    if not names:
        return {}
    word = "|".join(map(re.escape, names))
    split = re.split(rf"(?:^|(?<=\. )|(?<=\n))((?:{word})(?:, (?:{word}))*): ", text)
    if split[0].strip():
        return {}
    pairs = zip(split[1::2], split[2::2], strict=True)
    return {name: meaning.strip() for group, meaning in pairs for name in group.split(", ")}


def hooks_page() -> str:
    """Returns the page of all hooks as Markdown."""
    hooks = [read_hook(name) for name in HOOKS]
    rows = ((f"[`{hook.name}`](#{hook.name})", str(CALLS[hook.name]), CALLS[hook.name].combined) for hook in hooks)
    lines = [doc_of(hookspecs).partition("\n\n")[2], "", doc_of(calls).partition("\n\n")[2], ""]
    lines += table(("hook", "called", "results"), rows)
    for hook in hooks:
        lines += [f"## {hook.name}", "", code(hook.signature), "", hook.about, ""]
        lines += [f"- **Since** {hook.since}.", f"- **Called** {hook.called}", f"- **Results**: {hook.combined}"]
        if hook.returned:
            lines += [f"- **Returns** {code(hook.returned)}: {hook.returns}"]
        lines += ["", hook.notes, ""] if hook.notes else [""]
        arguments = ((code(name), code(kind), hook.arguments[name]) for name, kind in hook.types.items())
        lines += table(("argument", "type", "is"), arguments)
    return page("The hooks", *lines)


def _line(text: str) -> str:
    return " ".join(text.split())
