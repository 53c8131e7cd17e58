"""A headless Chromium, driven over the WebDriver protocol: JSON over HTTP, as ChromeDriver takes it.

`make browser` installs both from Debian's packages. Where they are not there, a test is skipped, unless
LITZ_NEED_BROWSER is set, as CI sets it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Tab": "\ue004", "Right": "\ue014"}
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"

PAINTED = """
const done = arguments[arguments.length - 1];
new PerformanceObserver((list) => done(Math.max(...list.getEntries().map((entry) => entry.startTime))))
  .observe({ type: "largest-contentful-paint", buffered: true });
setTimeout(() => done(null), 5000);
"""


class Browser:
    """One window. url: of ChromeDriver's session."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, **body: Any) -> Any:
        """A command of the protocol that takes a body, and its value."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from error

    def devtools(self, command: str, **params: Any) -> Any:
        return self.call("/goog/cdp/execute", cmd=command, params=params)

    def show(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a file, in a window of so many pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.call("/url", url=page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.call("/execute/sync", script=script, args=list(arguments))

    def wait(self, script: str, what: str = "") -> Any:
        """The script's value once it is true. Errors: AssertionError after ten seconds."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = self.run(f"return {script}")
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"never: {what or script}")

    def keys(self, *keys: str) -> None:
        """Press keys, one after the other: by name of `KEYS`, or the letters of a text."""
        pressed = [letter for key in keys for letter in ([KEYS[key]] if key in KEYS else key)]
        actions = [{"type": kind, "value": key} for key in pressed for kind in ("keyDown", "keyUp")]
        self.call("/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def largest_paint(self) -> float | None:
        """Largest Contentful Paint of the page so far, in ms."""
        return self.call("/execute/async", script=PAINTED, args=[])

    def errors(self) -> list[str]:
        """What the page's scripts complained of since this was asked last."""
        rows = self.call("/se/log", type="browser")
        return [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]

    def picture(self, file: Path) -> None:
        """A PNG of the window."""
        with urllib.request.urlopen(f"{self.url}/screenshot", timeout=60) as answer:
            file.write_bytes(base64.b64decode(json.loads(answer.read())["value"]))


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser while the `with` lasts; skips, or fails under LITZ_NEED_BROWSER, where there is none."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        problem = "there is no chromium with chromedriver: `make browser` installs them"
        if os.environ.get("LITZ_NEED_BROWSER"):
            pytest.fail(problem)
        pytest.skip(problem)
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="litz-browser-") as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield from _session(f"http://127.0.0.1:{port}", chromium, folder)
        finally:
            process.terminate()
            process.wait(20)


def _session(url: str, chromium: str, folder: str) -> Iterator[Browser]:
    options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={folder}"]}
    always = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    browser = Browser(url)
    until = time.monotonic() + 30
    while True:
        try:
            made = browser.call("/session", capabilities={"alwaysMatch": always})
            break
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    browser.url = f"{url}/session/{made['sessionId']}"
    try:
        yield browser
    finally:
        urllib.request.urlopen(urllib.request.Request(browser.url, method="DELETE"), timeout=20).close()
