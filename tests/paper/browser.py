"""Headless Chromium by its own protocol, over a pipe: nothing to install besides the browser."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATH = next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser. `events` is all that it reported."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, fro: int) -> None:
        self.process, self.to, self.fro = process, to, fro
        self.events: list[dict[str, Any]] = []
        self.rest = b""
        self.count = 0
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            chunk = os.read(self.fro, 2**20)
            if not chunk:
                raise RuntimeError("the browser has gone")
            self.rest += chunk
        one, _, self.rest = self.rest.partition(b"\0")
        message = json.loads(one)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light", media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + 60
        while self.evaluate("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < until, "the page did not load in a minute"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    assert PATH
    to_child, to = os.pipe()
    fro, from_child = os.pipe()
    command = [
        PATH, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    # Chromium reads the protocol from descriptor 3 and answers on 4.
    moved = f'exec 8<&{to_child} 9>&{from_child} 3<&8 4>&9; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", moved, "bash", *command],
        pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_child)
    os.close(from_child)
    try:
        yield Browser(process, to, fro)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to)
        os.close(fro)
