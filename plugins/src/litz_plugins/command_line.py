"""What the commands of plugins share: a command that runs a user's script, numbers with bounds, files to write.

Only commands import this module, which imports click.
"""

from __future__ import annotations

import math
import os
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

PLACE = "Options of this command stand before SCRIPT; everything after SCRIPT is the script's own."


class Number(click.FloatRange):
    """A number from a range that has a least value, without NaN and infinity, which click takes for any range."""

    def __init__(self, least: float = 0.0, most: float | None = None, *, above: bool = False) -> None:
        """above: the number must be larger than `least`."""
        super().__init__(least, most, min_open=above)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number. Errors: click.BadParameter."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no number in the range {self._describe_range()}.", param, ctx)
        return found


SECONDS = Number(above=True)
"""A time that passes: more than 0 s."""


class Output(click.Path):
    """A file to write, or with `file_okay=False` a folder. Its folder can be made, or the command does not begin."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Returns the path. Errors: click.BadParameter."""
        path = Path(str(super().convert(value, param, ctx)))
        problem = folder_problem(path.parent if self.file_okay else path)
        if problem:
            self.fail(f"{path} cannot be written: {problem}", param, ctx)
        return path


def folder_problem(folder: Path) -> str:
    """Returns why files cannot be written into a folder, or why the folder cannot be made; '' if all is well."""
    folder = folder.absolute()
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".litz-", dir=nearest) as trial:
            (Path(trial) / folder.relative_to(nearest)).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        return f"{nearest}: {getattr(error, 'strerror', None) or error}"
    return ""


class ScriptCommand(click.Command):
    """A command `litz COMMAND [OPTIONS] SCRIPT [ARGS]...`, with the parameters `script` and `args`. An unknown option
    before SCRIPT is an error that names the nearest option. An option of the command after SCRIPT gives a warning,
    because the script gets the option."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = {"allow_interspersed_args": False, **(kwargs.get("context_settings") or {})}
        kwargs.setdefault("epilog", PLACE)
        super().__init__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Warns about options that stand after the script, then runs the command. `--help` there is the script's."""
        words = [word.partition("=")[0] for word in takewhile(lambda word: word != "--", ctx.params["args"])]
        options = [one for one in self.params if isinstance(one, click.Option) and not one.hidden]
        own = {name for one in options for name in one.opts + one.secondary_opts}
        for name in dict.fromkeys(word for word in words if word in own):
            text = f"warning: {name} goes to the script; for `litz {ctx.info_name}` write {name} before SCRIPT"
            click.echo(text, err=True)
        return super().invoke(ctx)


__all__ = ["PLACE", "SECONDS", "Number", "Output", "ScriptCommand", "folder_problem"]
