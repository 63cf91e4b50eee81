"""The child that reads tensors: its replies, its errors, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODULE = [sys.executable, "-m", "models_registry.tensor_child"]


def reply(request: dict[str, Any]) -> dict[str, Any]:
    line = json.dumps(request).encode() + b"\n"
    with subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(line)
        child.stdin.flush()
        found: dict[str, Any] = json.loads(child.stdout.readline())
        assert child.wait(60) == 0
    return found


@pytest.fixture
def tensor(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "a").write_bytes(np.array([1, 2, 6], np.float32).tobytes())
    return {"path": str(tmp_path / "a"), "dtype": "F32", "begin": 0, "count": 3}


def test_statistics_and_changes(tensor: dict[str, Any]) -> None:
    assert reply({"work": "summarise", "tensor": tensor})["result"]["mean"] == 3
    request = {"work": "compare", "pairs": [[tensor, tensor]], "max_values": 9, "seconds": 20}
    assert reply(request)["result"]["changes"][0]["is_equal"]
    assert reply({**request, "seconds": -1})["result"]["changes"] == []


def test_errors_come_as_replies(tensor: dict[str, Any]) -> None:
    found = reply({"work": "summarise", "tensor": {**tensor, "count": 4}})
    assert "shorter than its header says" in found["error"]["message"]


def test_it_ends_when_nobody_waits(tensor: dict[str, Any], tmp_path: Path) -> None:
    """A sparse file, so that there is much to read and nothing to store."""
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(4 << 30)
    request = {"work": "summarise", "tensor": {**tensor, "path": str(large), "count": 1 << 27}}
    with subprocess.Popen(MODULE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.close()
        assert child.wait(60) == -15
