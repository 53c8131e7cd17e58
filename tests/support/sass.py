"""What ptxas made of a kernel, as text. In: a cubin. Out: lines of SASS, and what is wrong with them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

_LINE = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
_USED = re.compile(r"\bUR(\d+)\b")
_WRITTEN = re.compile(r"(?:@!?U?P\d+\s+)?(\S+)\s+UR(\d+)")


def sass(cubin: bytes) -> Iterator[str]:
    """The instructions, by the disassembler that Triton brings."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        text = subprocess.run([tool, "-sass", file], capture_output=True, text=True, check=True).stdout
    yield from (found[1] for line in text.splitlines() if (found := _LINE.match(line)))


def unset_registers(cubin: bytes) -> list[str]:
    """The instructions that read a uniform register which no instruction before them has written: their results hang
    on what ran on the multiprocessor before."""
    written: set[int] = set()
    found = []
    for text in sass(cubin):
        target = _WRITTEN.match(text)
        read = [int(number) for number in _USED.findall(text)][1 if target else 0 :]
        if not written.issuperset(read):
            found.append(text.strip())
        if target:
            first = int(target[2])
            pair = ".64" in target[1] or ".WIDE" in target[1]
            written |= {first, first + 1} if pair else {first}
    return found
