"""The errors of litz-aot, each with one message: what happened, where, what to do."""

from __future__ import annotations

from litz_plugins import LitzError


class PackageError(LitzError):
    """A package of `litz_aot.compile` cannot be written or loaded. path: which."""

    def __init__(self, problem: str, *, path: str = "", todo: str = "") -> None:
        self.problem = problem
        self.path = str(path)
        super().__init__(problem, where=self.path or "litz_aot.compile", todo=todo)


class PackageInputError(LitzError):
    """A loaded package is called with inputs that it was not made for."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        todo = (
            "call it with inputs like those given to litz_aot.compile, or write a package for these; name the sizes "
            "that vary by dynamic_shapes="
        )
        super().__init__(problem, where="a loaded package", todo=todo)


class ArtifactError(LitzError):
    """An artifact of `litz.standalone_compile` cannot be made, serialized or loaded. problem: why. path: of a file."""

    def __init__(self, problem: str, *, path: str = "", todo: str = "") -> None:
        self.problem = problem
        self.path = str(path)
        super().__init__(problem, where=self.path or "litz.standalone_compile", todo=todo)


class ArtifactInputError(LitzError):
    """An artifact is called with inputs that it was not made for."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        todo = "call it with inputs like those given to litz.standalone_compile, or make an artifact for these"
        super().__init__(problem, where="an artifact", todo=todo)


__all__ = ["ArtifactError", "ArtifactInputError", "PackageError", "PackageInputError"]
