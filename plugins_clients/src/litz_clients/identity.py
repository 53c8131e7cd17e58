"""The facts that a compile by litz depends on beside its graph, as one digest."""

from __future__ import annotations

import hashlib
import uuid

from litz.driver.compiler import make_compiler
from litz.graph_cache.fingerprints import option_parts, plugin_parts, processor_part, torch_part, version_parts
from litz.runtime.graph_entry import NotCacheable


def identity() -> str:
    """Returns a digest of the versions and sources of litz, its plugins and torch, of the options and of the processor.

    32 hex digits. Where a plugin cannot say what its results depend on, the digest is another one each time.
    """
    compiler = make_compiler(None, None, None)
    try:
        parts = [
            *version_parts(), torch_part(), *option_parts(compiler), *plugin_parts(compiler),
            processor_part(compiler.options),
        ]  # fmt: skip
    except NotCacheable:
        return uuid.uuid4().hex
    return hashlib.sha256("\n".join(f"{part.name}\n{part.text}" for part in parts).encode()).hexdigest()[:32]
