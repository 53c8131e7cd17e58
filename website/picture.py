"""README's picture of a report: the page that litz writes for a small model on the CPU, as a browser shows it.

`python -m website.picture` (`make picture`) needs Chromium and a C++ compiler, and writes docs/assets/report.png.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "report.png"
SIZE = (1280, 860)
"""Of the window, in pixels."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def write_report(folder: Path) -> Path:
    """Compiles a block of a transformer, inference, and returns the page of its graph."""
    os.environ["LITZ_GRAPH_CACHE"] = "0"  # a graph from the cache has no plan in its report
    import torch
    from torch import nn

    class Block(nn.Module):
        """A normalisation and a feed-forward layer, added to the input."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    torch.manual_seed(0)
    model = nn.Sequential(Block(256), Block(256), nn.Linear(256, 10), nn.Softmax(-1))
    with torch.no_grad():
        torch.compile(model, backend="litz", options={"report_dir": str(folder)})(torch.randn(64, 256))
    (page,) = folder.glob("*/report.html")
    return page


def photograph(page: Path, picture: Path) -> None:
    """Writes what a browser shows of the page as PNG. Errors: FileNotFoundError without a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise FileNotFoundError(f"none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    command = [browser, *FLAGS, size, "--virtual-time-budget=3000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        photograph(write_report(Path(folder)), Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
