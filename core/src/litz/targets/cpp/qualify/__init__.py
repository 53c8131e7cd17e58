"""Is the C++ compiler of this machine to be trusted? Small kernels of every construct, built and compared, once.

`probes` has the kernels, `verdict` builds them and keeps what came of it.
"""

from __future__ import annotations

from .verdict import qualify, qualify_target

__all__ = ["qualify", "qualify_target"]
