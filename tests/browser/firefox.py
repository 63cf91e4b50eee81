"""Drive a Firefox of the system by WebDriver BiDi, which it speaks itself: no driver has to be installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

BINARIES = ("firefox-esr", "firefox")
MISSING = f"no Firefox: none of {', '.join(BINARIES)} is on the PATH. Try: apt-get install firefox-esr"
PREFERENCES = """
user_pref("app.update.enabled", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "data:,");
user_pref("toolkit.telemetry.enabled", false);
"""
"""Ask nothing of other hosts."""
VIOLATIONS = """() => {
  window.violations = [];
  addEventListener("securitypolicyviolation", (at) => violations.push(`${at.violatedDirective} ${at.blockedURI}`));
}"""
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Control": "\ue009"}
REPLY_S = 120
"""Longest wait for a reply, on a busy machine."""


def firefox_binary() -> str | None:
    return next((found for name in BINARIES if (found := shutil.which(name))), None)


class Firefox:
    """One window, without a screen, with a profile of its own."""

    def __init__(self, binary: str, profile: Path) -> None:
        profile.mkdir(exist_ok=True)
        (profile / "user.js").write_text(PREFERENCES)
        options = ("--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0")
        self._log = (profile / "log").open("w")
        self._process = subprocess.Popen([binary, *options], stderr=subprocess.PIPE, stdout=self._log, text=True)
        address = self._address()
        self.errors: list[str] = []
        self._number = 0
        self._opened = ExitStack()
        self._socket = self._opened.enter_context(connect(f"{address}/session", max_size=None, open_timeout=REPLY_S))
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self.call("script.addPreloadScript", functionDeclaration=VIOLATIONS)
        self.context = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def __enter__(self) -> Firefox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()
        self._process.terminate()
        self._process.wait(timeout=REPLY_S)
        self._log.close()

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"listening on (ws://\S+)", line):
                self._process.stderr.close()
                return found[1]
        raise AssertionError("Firefox ended before it listened")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; errors of pages that are logged meanwhile are collected."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=REPLY_S))
            if message.get("type") == "event":
                if message["params"]["level"] == "error":
                    self.errors.append(str(message["params"]["text"]))
            elif message["id"] == self._number:
                assert message["type"] == "success", message
                return message["result"]

    def open(self, url: str) -> None:
        self.call("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        source = f"Promise.resolve({expression}).then((value) => JSON.stringify(value ?? null))"
        target = {"context": self.context}
        found = self.call("script.evaluate", expression=source, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])

    def resize(self, width: int, height: int) -> None:
        self.call("browsingContext.setViewport", context=self.context, viewport={"width": width, "height": height})

    def press(self, *keys: str) -> None:
        """Press keys together (``Control``, ``k``), or one, or the letters of a text one after the other."""
        names = [KEYS.get(key, key) for key in keys]
        down = [{"type": "keyDown", "value": name} for name in names]
        up = [{"type": "keyUp", "value": name} for name in reversed(names)]
        source = {"type": "key", "id": "keyboard", "actions": [*down, *up]}
        self.call("input.performActions", context=self.context, actions=[source])

    def write(self, text: str) -> None:
        for letter in text:
            self.press(letter)
