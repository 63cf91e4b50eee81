"""The child of a quantisation with the demo model: lines of JSON, limits, and an end without leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blazr_site import job_child
from blazr_site.quantise_child import quantise
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import StorageFull
from models_registry.detection.inspection import inspect_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1_300_000


def request(target: Path, **members: Any) -> dict[str, Any]:
    own = {
        "path": str(PREBUILT_DIRECTORY),
        "overrides": {},
        "target": str(target),
        "max_bytes": SIZE,
        "max_kl": None,
        "text": "",
    }
    return {**own, "device": "cpu", **members}


@contextmanager
def child(content: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "blazr_site.quantise_child"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        process.stdin.write(json.dumps(content) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_the_lines_end_with_the_figures_of_a_checkpoint(tmp_path: Path) -> None:
    with child(request(tmp_path / "out", text="A module is a file of definitions and statements. " * 10)) as process:
        *lines, last = [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
    shares = [line["progress"] for line in lines]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    stages = " ".join(line["stage"] for line in lines)
    assert all(words in stages for words in ("inspecting", "measuring layers.", "s left", "writing"))
    result = last["result"]
    assert result["size_bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size <= SIZE
    assert result["divergence"]["mean_kl"] > 0
    assert inspect_checkpoint(tmp_path / "out").spec.encoded


def test_an_error_is_a_line(tmp_path: Path) -> None:
    with child(request(tmp_path / "out", max_bytes=10)) as process:
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait() == 0
    assert last["error"]["class"] == "InvalidRequest"
    assert "can't be made smaller than" in last["error"]["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["a signal", "the parent's end"])
def test_it_stops_without_leftovers(how: str, tmp_path: Path) -> None:
    with child(request(tmp_path / "out")) as process:
        for line in process.stdout:
            if "measuring" in line:
                break
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(own + job_child.NICENESS, 19)
        if how == "a signal":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        began = time.monotonic()
        for line in process.stdout:
            assert "result" not in line
        assert process.wait() == 1
        assert time.monotonic() - began < 50
    assert list(tmp_path.iterdir()) == []


def test_a_bug_is_in_the_log_and_not_in_a_line(tmp_path: Path) -> None:
    with child(request(tmp_path / "out") | {"unheard": 1}) as process:
        assert process.stdout.read() == ""
        assert process.wait() == 1


# --- in this process -----------------------------------------------------------------------------


def test_a_target_that_takes_no_files_is_the_disks_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageFull, match="free some space and start the quantisation again"):
        quantise(**request(tmp_path / "out"), progress=lambda share, stage: None)
    assert "isn't an empty directory" in capfd.readouterr().err
