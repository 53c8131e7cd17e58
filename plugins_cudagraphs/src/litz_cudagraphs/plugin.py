"""The hook of litz-cudagraphs."""

from __future__ import annotations

from litz_plugins import Entry, EntryFacts, hookimpl
from litz_plugins.nouns import OptionsView


@hookimpl(tryfirst=True)  # a replay runs no Python: what other plugins wrap around an entry must be outside of it
def litz_wrap_entry(entry: Entry, facts: EntryFacts, options: OptionsView) -> Entry | None:
    """Returns the entry behind recordings, where the option `cuda_graphs` asks for them and they are possible."""
    if not options["cuda_graphs"] or facts.obstacle:
        return None
    from .recordings import replayed

    return replayed(entry, facts)
