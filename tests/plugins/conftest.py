"""`tests/plugins/projects` are the projects that `litz plugins new` writes, and their own tests: found here by path."""

import sys
from pathlib import Path

sys.path += sorted(map(str, (Path(__file__).parent / "projects").resolve().glob("*/src")))
