"""Headless Chromium for tests: open a page, resize, evaluate, press keys, take a picture; every complaint is kept.

Spoken to over Chromium's own debugging pipe (file descriptors 3 and 4, JSON ended by a zero byte), so that nothing
but the browser is needed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """Path of an installed Chromium, or of the one that CHROMIUM names."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open tab."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """Console errors and warnings, uncaught exceptions, refused loads."""
        self.requests: list[str] = []
        """Every URL that the page asked for."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """One command; returns its result. Raises AssertionError if the browser refuses or is silent for 60 s."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        return self._until(lambda event: event.get("id") == self._last_id, f"answer to {method}").get("result", {})

    def open(self, path: Path) -> None:
        """Load a file and wait until it is loaded."""
        self.call("Page.navigate", url=path.as_uri())
        self._until(lambda event: event.get("method") == "Page.loadEventFired", f"load of {path.name}")
        self.settle()

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the viewport in CSS pixels, and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def settle(self) -> None:
        """Two frames: whatever a resize or a key set off has been drawn; and the charts, which are unpacked first."""
        self.evaluate(
            """new Promise(done => (function wait(frames) {
                 const charts = document.querySelector("[data-chart]") && !document.documentElement.dataset.charts;
                 return frames || charts ? requestAnimationFrame(() => wait(Math.max(0, frames - 1))) : done(); })(2))"""
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (awaited), as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key, down and up, where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def picture(self, path: Path) -> None:
        """The whole page, beyond the viewport too, as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _until(self, wanted: Any, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read_from], [], [], max(0, deadline - time.monotonic()))
                assert ready, f"no {what} within 60 s"
                chunk = os.read(self._read_from, 1 << 20)
                assert chunk, f"the browser ended before the {what}"
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\0")
            event = json.loads(line)
            self._note(event)
            assert "error" not in event, event
            if wanted(event):
                return event

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def browser_page(program: str) -> Iterator[Page]:
    """A tab of a fresh headless browser, which is ended afterwards."""
    read_command, write_command = os.pipe()
    read_event, write_event = os.pipe()
    with tempfile.TemporaryDirectory(prefix="trnprof-chromium-", ignore_cleanup_errors=True) as profile:
        command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        # The shell puts our pipe ends where the browser looks for them.
        shell = f'exec "$@" 3<&{read_command} 4>&{write_event}'
        with open(Path(profile) / "log", "wb") as log:  # noqa: PTH123
            process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *command],
                pass_fds=(read_command, write_event),
                stdout=log,
                stderr=log,
            )
        os.close(read_command)
        os.close(write_event)
        try:
            yield Page(write_command, read_event)
        finally:
            os.close(write_command)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(read_event)
