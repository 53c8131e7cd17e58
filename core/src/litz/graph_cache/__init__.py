"""The graph cache: graphs that were compiled before, here or elsewhere, are loaded. See docs/caches.md."""

# ruff: noqa: F401 (what is imported here is what the folder has to offer)

from .fingerprints import devices_of
from .key import Difference, Key, Part
from .lookup import OFF, Lookup, forget, guards_texts, load, look_up, make_key, share, strides_of, strides_texts
from .without_trace import program_of, setting_of, take
