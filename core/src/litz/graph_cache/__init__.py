"""The graph cache: graphs that were compiled before, here or elsewhere, are loaded. See docs/caches.md."""

from .fingerprints import devices_of
from .key import Difference, Key, Part
from .lookup import OFF, Lookup, forget, guards_texts, load, look_up, make_key, remember, strides_of, strides_texts
from .without_trace import program_of, setting_of, take

__all__ = [
    "OFF",
    "Difference",
    "Key",
    "Lookup",
    "Part",
    "devices_of",
    "forget",
    "guards_texts",
    "load",
    "look_up",
    "make_key",
    "program_of",
    "remember",
    "setting_of",
    "strides_of",
    "strides_texts",
    "take",
]
