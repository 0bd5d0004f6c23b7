"""A headless Chromium driven over a pipe by its own protocol: no package, no port, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.places import ROOT

# Long enough for a busy machine; a browser that hangs must not hang the tests.
PATIENCE = 120
AXE = ROOT / ".venv" / "node_modules" / "axe-core" / "axe.min.js"


def find_chromium():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One browser with one page; use it as a context."""

    def __init__(self, executable):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        here_in, there_out = os.pipe()
        there_in, here_out = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{there_in} 4>&{there_out}'
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += ["--hide-scrollbars", "--disable-dev-shm-usage", f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", executable, *options, "about:blank"],
            pass_fds=(there_in, there_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there_in)
        os.close(there_out)
        self._in, self._out, self._rest, self._number = here_in, here_out, b"", 0
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")
        attach = {"targetId": target["targetId"], "flatten": True}
        self._session = None
        self._session = self.call("Target.attachToTarget", **attach)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._rest += chunk
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, width=1280, height=900, dark=False):
        """Open a file and wait until it is loaded, its viewer included."""
        self.go(Path(path).resolve().as_uri(), width, height, dark)

    def go(self, address, width=1280, height=900, dark=False):
        """Open an address and wait until it is loaded."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.evaluate("window.isLeft = true")
        self.call("Page.navigate", url=address)
        self.wait_until_loaded()

    def wait_until_loaded(self):
        """Wait until another page than the one that was marked is there."""
        ready = (
            "!window.isLeft && document.readyState === 'complete' && (!document.querySelector('#viewer') || "
        )
        ready += "document.querySelector('#viewer').dataset.ready === 'yes')"
        self.wait(ready)

    def wait(self, condition):
        end = time.monotonic() + PATIENCE
        while not self._holds(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"never true: {condition}")
            time.sleep(0.05)

    def _holds(self, condition):
        try:
            return self.evaluate(condition)
        except RuntimeError as error:
            # Between two pages there is nothing to ask.
            if "context" not in str(error):
                raise
            return False

    def fill(self, name, value):
        """Put a value into a field of a form."""
        field = f"document.querySelector({json.dumps(f'main [name={json.dumps(name)}]')})"
        self.evaluate(f"{field}.value = {json.dumps(value)}")

    def choose_files(self, name, *paths):
        """Choose files in a field of a form."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        field = self.call("DOM.querySelector", nodeId=root, selector=f'main input[name="{name}"]')["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=field, files=[str(path) for path in paths])

    def push(self, words):
        """Press the button or the link with these words, and wait for the next page."""
        every = "[...document.querySelectorAll('main button, main a, nav a')]"
        found = f"{every}.find((one) => one.textContent.trim() === {json.dumps(words)})"
        assert self.evaluate(f"Boolean({found})"), words
        self.evaluate("window.isLeft = true")
        self.evaluate(f"{found}.click()")
        self.wait_until_loaded()

    def text(self):
        """What is read on the page."""
        return self.evaluate("document.body.innerText")

    def evaluate(self, code):
        """Return the value of an expression in the page, awaited."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def pdf(self):
        return base64.b64decode(
            self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"]
        )

    def complaints(self):
        """Everything that the page wrote to the console as an error, and every exception."""
        found = []
        for event in self.events:
            method, given = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append(given["entry"]["text"])
            elif method == "Runtime.exceptionThrown" or (
                method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert")
            ):
                found.append(str(given)[:300])
        return found

    def requests(self):
        """Every address that was asked for, but the page itself and what is inside it."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]
