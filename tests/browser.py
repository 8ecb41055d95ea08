"""A browser for the tests of the page: Chromium, which `make test` installs from npm, through its DevTools protocol."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from waiting import wait_for

FOLDER = Path(sys.prefix) / "browser"
"""Where `install_browser` installs it."""

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"
_SECONDS = 60.0  # for an answer, on a busy machine
_OPTIONS = (
    *(
        "--headless=shell",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--no-zygote",
        "--in-process-gpu",
        "--disable-gpu",
    ),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--font-render-hinting=none", "--hide-scrollbars", "--disable-dev-shm-usage"),  # a container has little of it
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "/": 191}


class BrowserError(Exception):
    """The browser refuses a command, or an expression throws."""


class Browser:
    """One process of Chromium with one tab.

    Attributes:
        complaints: Errors and refused resources that its pages have caused since the list was emptied.
        requested: URLs of the requests since the list was emptied.

    Args:
        folder: For its profile.
    """

    def __init__(self, folder: Path) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._number = 0
        self._unread = b""
        self._loaded = False
        fonts = folder / "fonts.conf"
        fonts.write_text(
            f"<fontconfig><dir>{FOLDER / 'fonts'}</dir><cachedir>{folder / 'fonts'}</cachedir></fontconfig>"
        )
        (theirs, self._commands), (self._answers, answers) = os.pipe(), os.pipe()
        self._pid = os.posix_spawn(
            FOLDER / "chromium",
            ["chromium", *_OPTIONS, f"--user-data-dir={folder / 'profile'}"],
            {"LD_LIBRARY_PATH": str(FOLDER / "lib"), "FONTCONFIG_FILE": str(fonts), "HOME": str(folder), "TZ": "UTC"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs, 3),
                (os.POSIX_SPAWN_DUP2, answers, 4),
                (os.POSIX_SPAWN_OPEN, 2, str(folder / "messages"), os.O_WRONLY | os.O_CREAT, 0o600),
            ],
        )
        os.close(theirs)
        os.close(answers)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)  # which ends it, with its other processes
        os.close(self._answers)
        try:
            wait_for(lambda: os.waitpid(self._pid, os.WNOHANG)[0], _SECONDS)
        except AssertionError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            raise

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def run(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript; that of a promise once it is fulfilled."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(str(details.get("exception", details).get("description", details)))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression once it is true."""
        return wait_for(lambda: self.run(expression), _SECONDS)

    def go(self, url: str) -> None:
        """Load a page with its images."""
        self._loaded = False
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.wait_for_page()

    def wait_for_page(self) -> None:
        """Wait until the page that is being loaded is complete."""
        while not self._loaded:
            self._receive()

    def click_to_load(self, expression: str) -> None:
        """Click on an element, which loads another page."""
        self._loaded = False
        self.click(expression)
        self.wait_for_page()

    def press_to_load(self, *keys: str) -> None:
        """Press keys, of which the last loads another page."""
        self._loaded = False
        self.press(*keys)
        self.wait_for_page()

    def click(self, expression: str) -> None:
        """Click on the middle of an element with the mouse."""
        script = (
            f"(() => {{ const e = {expression}; e.scrollIntoView({{block: 'center'}}); "
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        for key in keys:
            code = _KEYS.get(key, ord(key[0].upper()))
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            named = {"key": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def show_as(self, width: int, scheme: str = "light") -> None:
        """Set the size of the window in CSS pixels, and whether the user prefers ``light`` or ``dark``."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def violations(self, *rules: str) -> list[str]:
        """Return what axe finds on the page, by some of its rules or by all: the rule, elements, and what is wrong."""
        if not self.run("'axe' in window"):
            self.run((FOLDER / "axe.min.js").read_text())
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.run(f"axe.run(document, {json.dumps(options)}).then(result => result.violations)")
        return [f"{one['id']}: {node['html']} {node['failureSummary']}" for one in found for node in one["nodes"]]

    def _receive(self) -> Mapping[str, Any]:
        """Read the next message; take down what it says about errors."""
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], _SECONDS)
            assert ready, "the browser does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        values = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requested.append(values["request"]["url"])
            case "Page.javascriptDialogOpening":  # which waits for an answer
                self.complaints.append(f"a dialog: {values['message']}")
                raise BrowserError(self.complaints[-1])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(values["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if values["type"] in ("error", "assert"):
                self.complaints.append(str(values["args"]))
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.complaints.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
        return message
