"""The errors of litz-aot: one message with what, where and what to do; and alive after pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

import litz_aot.errors as errors
from litz_aot.errors import ArtifactError, ArtifactInputError, PackageError, PackageInputError
from litz_plugins import LitzError

EXAMPLES = [
    (PackageError("made with torch 1", path="/x", todo="write it anew"), ["made with torch 1", "/x", "write it anew"]),
    (PackageError("it has no name"), ["it has no name", "litz_aot.compile"]),
    (PackageInputError("x is a list"), ["x is a list", "a loaded package", "dynamic_shapes="]),
    (ArtifactError("it is damaged", path="/x", todo="make it anew"), ["it is damaged", "/x", "make it anew"]),
    (ArtifactError("it has no data"), ["it has no data", "litz.standalone_compile"]),
    (ArtifactInputError("x is 3"), ["x is 3", "an artifact", "litz.standalone_compile"]),
]


@pytest.mark.parametrize(("error", "parts"), EXAMPLES)
def test_message_says_what_is_needed_and_survives_pickling(error: LitzError, parts: list[str]) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)
    assert all(part in str(again) for part in parts), str(again)


def test_every_error_is_covered_here() -> None:
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LitzError)}
    assert classes - {LitzError} == {type(error) for error, _ in EXAMPLES}
