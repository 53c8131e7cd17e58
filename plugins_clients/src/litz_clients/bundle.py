"""What torch's `AOTCompiledArtifact.deserialize` reads, made of litz's bytes.

A program that keeps compiled functions as torch's bundled artifacts (vLLM, torchtitan) pickles and unpickles what
`packed` returns. The pickle holds litz's bytes and the name of one class: what those bytes mean is for
`litz.deserialize` alone, which checks and never unpickles.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import litz


@dataclass
class Entry:
    """In the place of AOTAutograd's bundled result, with the fields that torch reads.

    data: what `litz.serialize()` returned.
    """

    data: bytes
    guards_expr: str | None = None
    sanitized_aot_config: Any = None

    def wrap_post_compile(self, args: Sequence[Any], aot_config: Any, fx_config: Any) -> Callable[[list[Any]], Any]:
        """Returns the compiled function, which takes its inputs as one list. Errors: those of `litz.deserialize`."""
        run = litz.deserialize(self.data)
        return lambda inputs: run(*inputs)


def packed(data: bytes) -> bytes:
    """Returns the bytes for `torch._inductor.standalone_compile.AOTCompiledArtifact.deserialize`.

    data: what a litz callable's `serialize()` returned.
    """
    return pickle.dumps((Entry(data), {}, {}))  # the two are torch's table of user Triton kernels: none by index here
