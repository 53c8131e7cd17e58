"""litz: a torch.compile backend with a small core and pip-installed plugins.

    torch.compile(model, backend="litz")

`litz.backend` is what torch.compile finds; `litz.pipeline` has the whole compiler on one page; `litz.options` lists
what can be set. Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
