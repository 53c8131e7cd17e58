"""Values of options that hold a password. In: the text that the user gave. Out: a text that may be shown anywhere."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
_ADDRESS = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<user>[^/?#@\s]*@)?(?P<place>[^@?#\s]*)(?P<more>\?[^@\s]*)?"
)
_PLACE = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])?(:\d+)?(/[\w./-]*)?")


class Secret(str):
    """A text that shows what it may: `redis://***@host:6379/0` for `redis://user:password@host:6379/0`.

    As a str it *is* the shown text: whatever prints, formats, hashes, pickles or writes it as JSON has that text and no
    other. `reveal()` alone gives what the user wrote, to whom it is for. Of an address scheme, host, port and path are
    shown; of any other text, `***`. Two secrets are equal if what they hide is.
    """

    __slots__ = ("_hidden",)
    _hidden: str

    def __new__(cls, text: str) -> Secret:
        """Makes a secret of a text, and of a secret the same again."""
        if isinstance(text, Secret):
            return text
        made = super().__new__(cls, _shown(text))
        made._hidden = text
        return made

    def reveal(self) -> str:
        """Returns the text with its password, for the server or library that asks for it and nobody else."""
        return self._hidden

    def __eq__(self, other: object) -> bool:
        return self._hidden == other._hidden if isinstance(other, Secret) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce__(self) -> Any:
        return Secret, (str(self),)  # what is pickled may come to lie in a file

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def _shown(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if found is None or not _PLACE.fullmatch(found["place"]):  # who knows where the password ends
        return HIDDEN
    user = f"{HIDDEN}@" if found["user"] else ""
    return f"{found['scheme']}{user}{found['place']}" + (f"?{HIDDEN}" if found["more"] else "")
