"""The child of a measurement with the demo model: lines of JSON, bad texts, and an end on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from blazr_site import job_child
from blazr_site.span_child import measure
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry.default_text import DEFAULT_TEXT

ROOT = Path(__file__).resolve().parents[2]


def request(**members: Any) -> dict[str, Any]:
    own = {"path": str(PREBUILT_DIRECTORY), "overrides": {}, "model": "demo", "text": DEFAULT_TEXT, "max_tokens": 48}
    return {**own, "device": "cpu", **members}


def child(content: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "blazr_site.span_child"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdin.write(json.dumps(content) + "\n")
    process.stdin.flush()
    return process


def test_the_lines_end_with_figures_table_and_picture() -> None:
    with child(request()) as process:
        *lines, last = [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
    shares = [line["progress"] for line in lines]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {"inspecting", "loading weights", "layer 3"} <= {line["stage"] for line in lines}
    result = last["result"]
    figures = result["figures"]
    assert (figures["tokens"], figures["text"], figures["dtype"]) == (48, "a text", "float32")
    assert [row["kind"] for row in result["table"]] == ["mamba2", "mamba2", "mla", "mamba2", "attention", "mamba2"]
    assert ElementTree.fromstring(result["picture"]).tag.endswith("svg")


def test_a_signal_ends_it() -> None:
    with child(request(max_tokens=1024)) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert "result" not in process.stdout.read()
        assert process.wait(60) == 1


# --- in this process -----------------------------------------------------------------------------


def measured(**members: Any) -> dict[str, Any]:
    return measure(**request(**members), progress=lambda share, stage: None)


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the text has 1 tokens; 2 to 4096 can be inspected"):
        measured(text="a")


def test_no_more_is_read_than_the_model_takes() -> None:
    found = measured(max_tokens=4096, overrides={"max_position_embeddings": 16})
    assert found["figures"]["tokens"] == 16


def test_without_a_text_random_tokens_are_read() -> None:
    found = measured(text="")
    assert (found["figures"]["text"], found["figures"]["tokens"]) == ("random tokens", 48)


def test_hostile_names_stay_text() -> None:
    root = ElementTree.fromstring(measured(model="<script>alert(1)</script>")["picture"])
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "free_memory_bytes", lambda where: 1 << 20)
    with pytest.raises(InvalidRequest, match=r"takes .* of memory, cpu has 1\.0 MiB free; unload models, read fewer"):
        measured()
