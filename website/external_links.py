"""Links of README and docs to other sites: which of them lead nowhere. In: the tracked pages. Out: a line for each dead
link, and the exit status 1 if there is one.

`make links` runs this by hand, since it needs the network: CI does not depend on other people's servers. Links inside
the repository are checked by tests and by `make docs`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from website.links import CODE

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "*.ipynb", "*.cff", "*pyproject.toml")
ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'`\\]+")
SECONDS = 20.0
"""How long a server may take to answer."""
LIMITED = (401, 403, 405, 429)
"""Answers by which a server refuses a program, or asks it to come back later: the page may well be there."""
HEADERS = {"User-Agent": "litz-docs-links/0.1"}


def tracked_pages(root: Path = ROOT) -> list[Path]:
    """Returns the pages that git knows, sorted. Errors: CalledProcessError outside of a checkout."""
    done = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--", *PAGES], capture_output=True, text=True, check=True
    )
    return [root / name for name in sorted(done.stdout.splitlines())]


def addresses(pages: Iterable[Path]) -> dict[str, list[str]]:
    """Returns each address outside of code, without its fragment, with the names of the pages that link to it."""
    found: dict[str, list[str]] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        text = CODE.sub("", text) if page.suffix == ".md" else text
        for address in sorted({match.rstrip(".,;:").partition("#")[0] for match in ADDRESS.findall(text)}):
            found.setdefault(address, []).append(page.name)
    return found


def problem(address: str, seconds: float = SECONDS) -> str:
    """Asks for a page, and returns what is wrong with it: "404 Not Found", "no answer"; '' if the page is there."""
    try:
        with urlopen(Request(address, headers=HEADERS), timeout=seconds):
            return ""
    except HTTPError as answer:
        return "" if answer.code in LIMITED else f"{answer.code} {answer.reason}"
    except (OSError, ValueError) as cause:
        return f"no answer: {cause}"


def dead(found: Mapping[str, list[str]], seconds: float = SECONDS) -> list[str]:
    """Returns a line for each address that leads nowhere, in the order of the addresses. Asks eight servers at a
    time."""
    with ThreadPoolExecutor(8) as threads:
        problems = threads.map(lambda address: problem(address, seconds), found)
        return [
            f"{address}: {wrong} ({', '.join(pages)})"
            for (address, pages), wrong in zip(found.items(), problems, strict=True)
            if wrong
        ]


def main() -> int:
    """Prints the dead links, or how many links are alive. Returns the exit status."""
    found = addresses(tracked_pages())
    wrong = dead(found)
    print("\n".join(wrong) if wrong else f"{len(found)} links, none of them dead")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
