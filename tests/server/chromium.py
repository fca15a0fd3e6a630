"""A headless Chromium, driven over a pipe by its DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.server.serving import wait_until

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FOREIGN_NAME = "chat.example.com"

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--remote-debugging-pipe",
    # A name that its owner has pointed at this machine.
    f"--host-resolver-rules=MAP {FOREIGN_NAME} 127.0.0.1",
)

# Chromium reads orders from descriptor 3 and writes to 4.
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Page:
    """One page of the browser."""

    def __init__(self, orders: int, replies: int) -> None:
        self._orders = orders
        self._replies = os.fdopen(replies, "rb")
        self._answers: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """Errors and warnings on the console, and exceptions that nobody caught."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Give an order and return its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._orders, json.dumps(message).encode() + b"\0")
        wait_until(lambda: number in self._answers, timeout_s=120)
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str) -> None:
        """Go to `url`."""
        self.call("Page.navigate", url=url)

    def look(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, timeout_s: float = 120.0) -> None:
        """Wait until a JavaScript expression is true."""
        wait_until(lambda: bool(self.look(script)), timeout_s)

    def shoot(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Write a picture of the whole page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """Let the browser end, and wait for its last words."""
        os.close(self._orders)
        self._listener.join(120)
        self._replies.close()

    def _listen(self) -> None:
        text = b""
        while chunk := self._replies.read1():
            *messages, text = (text + chunk).split(b"\0")
            for message in messages:
                self._hear(json.loads(message))

    def _hear(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(message["params"]["exceptionDetails"]["exception"].get("description", "exception"))
        elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] in ("error", "warning"):
            self.complaints.append(message["params"]["entry"]["text"])
        elif message["method"] == "Runtime.consoleAPICalled" and message["params"]["type"] in ("error", "warning"):
            self.complaints.append(str(message["params"]["args"]))


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Run a browser with a new profile in `profile` until the block ends."""
    assert PATH is not None
    (order_end, orders), (replies, reply_end) = os.pipe(), os.pipe()
    command = [
        sys.executable,
        "-c",
        _START,
        str(order_end),
        str(reply_end),
        PATH,
        *_FLAGS,
        f"--user-data-dir={profile}",
    ]
    with (profile.parent / "chromium.log").open("wb") as log:
        browser = subprocess.Popen(command, pass_fds=(order_end, reply_end), stdout=log, stderr=log)
    os.close(order_end)
    os.close(reply_end)
    try:
        with contextlib.closing(Page(orders, replies)) as page:
            yield page
    finally:
        browser.kill()
        browser.wait()
