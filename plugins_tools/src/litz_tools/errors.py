"""The errors of litz-tools, each with one message: what happened, where, what to do."""

from __future__ import annotations

from litz_plugins import LitzError


class BisectError(LitzError):
    """`litz bisect` cannot begin or go on: the script fails, calls too little, or is too noisy to measure."""
