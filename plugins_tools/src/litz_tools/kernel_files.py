"""The files of kernels that are timed alone. In: a path. Out: the files that the path means, and what a file says.

Loads no torch, so that a wrong path is an error at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from litz_plugins.errors import describe
from litz_tools.errors import KernelFileError

FORMAT, VERSION = "litz-kernel", 1
SUFFIX = ".json"


def kernel_files(path: Path) -> list[Path]:
    """Returns the kernels' files that `path` means: itself, or those in a folder, kernel2 before kernel10. Errors:
    KernelFileError."""
    if path.is_file():
        return [path.with_suffix(SUFFIX)]
    folders = [folder for folder in (path, path / "kernels") if folder.is_dir()]
    files = [file for folder in folders for file in folder.glob(f"*{SUFFIX}") if _is_kernel(file)]
    if not files:
        problem = "there is no kernel's file in it" if folders else "there is no such file or folder"
        raise KernelFileError(problem, path=str(path))
    return sorted(files, key=lambda file: (len(file.name), file.name))


def _is_kernel(file: Path) -> bool:
    try:
        read_file(file)
    except KernelFileError:
        return False
    return True


def read_file(path: Path) -> Mapping[str, Any]:
    """Returns what a kernel's file says. Errors: KernelFileError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KernelFileError(describe(error), path=str(path)) from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise KernelFileError(f"it is not of the format {FORMAT} {VERSION}", path=str(path))
    return data


__all__ = ["FORMAT", "SUFFIX", "VERSION", "kernel_files", "read_file"]
