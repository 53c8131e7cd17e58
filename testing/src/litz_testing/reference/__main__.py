"""Writes the reference pages: `python -m litz_testing.reference docs/plugins`."""

import sys
from pathlib import Path

from litz_testing.reference import PAGES

for name, made in PAGES.items():
    (Path(sys.argv[1]) / name).write_text(made(), encoding="utf-8")
