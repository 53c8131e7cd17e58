"""A plugin of the kit's own beside the one under test: sees which passes ran and what they changed, sees what is
offered for contractions, and can have one of the offers taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz_plugins import Choice, ChoiceContext, Pass, hookimpl
from litz_plugins.blame import Called
from litz_plugins.manager import offer_of
from litz_plugins.nouns import Noun

NAME = "litz_testing"


class Watching:
    """ran: the passes that ran since `clear`, by name: did they change their noun? offered: the names of the templates'
    choices. wanted: the choice to take wherever it is offered, '' to leave it to others. answered: what of the plugins
    was ever called and returned a sequence with something in it (`Called.what`), core's own aside."""

    def __init__(self) -> None:
        self.ran: dict[str, bool] = {}
        self.offered: dict[str, None] = {}
        self.wanted = ""
        self.answered: set[str] = set()

    def called(self, call: Called) -> None:
        """Takes note of a call of a plugin's function that returned a sequence with something in it."""
        if (
            isinstance(call.result, (list, tuple)) and call.result
        ):  # a traced tensor must not be asked whether it is true
            self.answered.add(call.what)

    def offers(self, template: str) -> bool:
        """Returns whether a template has ever offered a choice. Not known of core's own."""
        return offer_of(template) in self.answered

    def clear(self) -> None:
        """Forgets what was seen."""
        self.ran, self.offered = {}, {}

    @hookimpl
    def litz_pass_finished(self, pass_: Pass, before: Noun, after: Noun) -> None:
        """Takes note of whether a pass changed anything."""
        self.ran[pass_.name] = self.ran.get(pass_.name, False) or before is not after

    @hookimpl(tryfirst=True)
    def litz_select_choice(self, choices: Sequence[Choice], context: ChoiceContext) -> Choice | None:
        """Takes note of the kernels that are offered, and takes the wanted one."""
        self.offered.update((choice.name, None) for choice in choices if choice.kind == "template")
        return next((choice for choice in choices if self.wanted and choice.name == self.wanted), None)

    @hookimpl
    def litz_cache_fingerprint(self) -> str:
        """Returns the wanted choice, which decides what is compiled."""
        return f"takes {self.wanted}"


__all__ = ["NAME", "Watching"]
