"""dynamo's list of backends, by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint


def register_backend(name: str, place: str) -> None:
    """Makes a backend known to `torch.compile(backend=name)`, where nothing of that name is known. place:
    "module:attribute", imported when the backend is first used."""
    from torch._dynamo.backends import registry

    if name not in registry.list_backends(exclude_tags=()):
        registry._BACKENDS[name] = EntryPoint(name, place, "torch_dynamo_backends")
