"""Whose files litz loads. In: a path. Out: what others could do there, or the file, opened.

One rule for everything that litz runs, loads or unpickles, the one by which ssh looks at its keys: a folder, and every
folder and link on the way to it, belongs to the user or to root, and nobody else may write there. Who cannot write on
the way can neither change a file nor put another in its place. Users and groups named by the option `trust` count as
the user himself. Writing in a folder above is allowed to others where its sticky bit keeps them from renaming (/tmp).
"""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LINKS = 40
"""Links that the kernel follows on the way to a file."""
_OTHERS, _GROUP = stat.S_IWOTH, stat.S_IWGRP


@dataclass(frozen=True)
class Trust:
    """Users and groups, by number, whose files are loaded beside the user's own and root's."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()

    def problem_of(self, path: str | os.PathLike[str], sticky: bool = False) -> str:
        """Returns who else could change what lies in a folder or file, and what to do; '' for nobody. What is not there
        yet is judged by the folders above. sticky: others may have folders of their own in it, as in /tmp."""
        if not hasattr(os, "geteuid"):
            return ""
        here, links = "/", 0
        todo = [part for part in reversed(os.path.join(os.getcwd(), path).split("/")) if part not in ("", ".")]
        problem = self._problem("/", os.lstat("/"), above=bool(todo) or sticky)
        while todo and not problem:
            part = todo.pop()
            there = os.path.join(here, part) if part != ".." else os.path.dirname(here)
            try:
                found = os.lstat(there)
                if stat.S_ISLNK(found.st_mode):
                    target, links = os.readlink(there), links + 1
                    if links > _LINKS:
                        return f"{there} leads nowhere"
                    if not self._owns(found, above=bool(todo) or sticky):
                        return _of_another(there, found)
                    here = "/" if target.startswith("/") else here
                    todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                    continue
            except FileNotFoundError:
                return ""
            except OSError as cause:
                return f"{there}: {cause.strerror}"
            problem, here = self._problem(there, found, above=bool(todo) or sticky), there
        return problem

    @property
    def mode(self) -> int:
        """Returns the mode of a new folder: nobody else may write there, whatever the process's mask; a group may that
        is trusted."""
        return 0o775 if self.groups else 0o755

    def make(self, folder: Path) -> None:
        """Makes a folder and those above. What is there stays as it is. Errors: OSError."""
        if not folder.is_dir():
            self.make(folder.parent)
            folder.mkdir(self.mode, exist_ok=True)

    def opened(self, path: Path) -> io.BufferedReader:
        """Returns a plain file, opened to be read, which nobody else can write. What is looked at is what was opened.
        Errors: OSError."""
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        found = os.fstat(number)
        problem = "no plain file" if not stat.S_ISREG(found.st_mode) else self._problem(str(path), found, above=False)
        if problem:
            os.close(number)
            raise PermissionError(errno.EPERM, problem, str(path))
        return os.fdopen(number, "rb")

    def owns(self, folder: Path) -> bool:
        """Returns whether a folder is one, reached by no link, in which nobody else may write; the folders above are
        not looked at. Errors: OSError."""
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and not self._problem(str(folder), found, above=False)

    def _problem(self, path: str, found: os.stat_result, above: bool) -> str:
        if not hasattr(os, "geteuid"):
            return ""
        if not self._owns(found, above):
            return _of_another(path, found)
        loose = found.st_mode & (_OTHERS | _GROUP)
        if above and found.st_mode & stat.S_ISVTX:
            loose = 0
        if loose & _GROUP and (found.st_gid in self.groups or _is_private(path, found)):
            loose &= ~_GROUP
        if not loose:
            return ""
        who = "everybody" if loose & _OTHERS else f"the group {_group(found.st_gid)}"
        return (
            f"{who} may write to {path} (mode {stat.S_IMODE(found.st_mode):o}), and litz runs what lies there: "
            f"chmod -R go-w {path}, once you know that nobody did"
        )

    def _owns(self, found: os.stat_result, above: bool) -> bool:
        known = {0, os.geteuid(), *self.users, *([_unmapped()] if above else [])}
        return found.st_uid in known or found.st_gid in self.groups


OWN = Trust()
"""The user and root alone."""


def make_trust(names: Iterable[str]) -> Trust:
    """Returns the trust of the option `trust`: users by name or number, and groups as %name. Errors: ValueError for a
    name that this machine does not know."""
    users, groups = set(), set()
    for name in names:
        try:
            if name.startswith("%"):
                import grp

                groups.add(int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid)
            else:
                import pwd

                users.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except (KeyError, ImportError):
            raise ValueError(f"this machine knows no {name!r}") from None
    return Trust(frozenset(users), frozenset(groups))


@functools.cache
def warn_once(text: str) -> None:
    """Warns, once a process."""
    warnings.warn(text, stacklevel=1)


def _of_another(path: str, found: os.stat_result) -> str:
    owner = _user(found.st_uid)
    return (
        f"{path} belongs to {owner}, and litz runs what lies there: LITZ_TRUST={owner} if you would run whatever "
        f"{owner} puts there"
    )


_LISTS = ("system.posix_acl_access", "system.nfs4_acl")
"""Attributes of a folder that list who else has which rights."""


def _is_private(path: str, found: os.stat_result) -> bool:
    """Returns whether the group is its owner's alone, by the owner's name (as under umask 002), with no list of others.
    Group 0 never is: containers start users of any number in it, whom no file lists."""
    if found.st_gid == 0:
        return False
    try:
        import grp
        import pwd

        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
        others = any(user.pw_gid == found.st_gid and user.pw_uid != found.st_uid for user in pwd.getpwall())
        listed = not set(os.listxattr(path)).isdisjoint(_LISTS) if hasattr(os, "listxattr") else False
        return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name} and not (others or listed)
    except (KeyError, ImportError, OSError):
        return False


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (KeyError, ImportError):
        return str(number)


def _group(number: int) -> str:
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (KeyError, ImportError):
        return str(number)


@functools.cache
def _unmapped() -> int:
    """The number that stands for root where the process is in a user namespace without root (containers without
    privileges show / so); 0 where there is none."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").split("\n")
        ranges = [tuple(map(int, line.split())) for line in lines if line]
        if any(outer == 0 for _, outer, _ in ranges):
            return 0
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
