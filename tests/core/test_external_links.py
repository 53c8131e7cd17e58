"""`make links` without the network: which addresses are found in pages, and what an answer means."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from website import external_links


class Handler(BaseHTTPRequestHandler):
    """Answers /404 with 404, and so on."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:4]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_addresses_of_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](https://a.org/x#part), https://b.org/y. `https://code.org`\n\n```\nhttps://block.org\n```\n")
    other = tmp_path / "other.md"
    other.write_text("[local](page.md) [a](https://a.org/x)")
    found = external_links.addresses([page, other])
    assert found == {"https://a.org/x": ["page.md", "other.md"], "https://b.org/y": ["page.md"]}


@pytest.mark.nightly
def test_dead_links_are_named(server: str) -> None:
    found = {f"{server}/{code}": ["page.md"] for code in (200, 404, 429, 500)}
    lines = external_links.dead(found)
    assert [line.split(": ")[0] for line in lines] == [f"{server}/404", f"{server}/500"]
    assert "404 Not Found (page.md)" in lines[0]


@pytest.mark.nightly
def test_a_server_that_is_not_there(server: str) -> None:
    assert external_links.problem("http://127.0.0.1:9/").startswith("no answer")
    assert external_links.problem("http://[").startswith("no answer")


@pytest.mark.nightly
def test_the_pages_of_the_checkout_are_read() -> None:
    pages = external_links.tracked_pages()
    assert {"README.md", "design.md", "first_steps.ipynb"} <= {page.name for page in pages}
    assert any("keepachangelog" in address for address in external_links.addresses(pages))
