"""Parameters that a checkpoint recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models_registry.sampling_defaults import FILE, sampling_defaults


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1},
         {"temperature": 0, "repetition_penalty": 1.1}),
        ({"temperature": 9, "top_p": "much", "top_k": True, "min_p": None}, {}),
        ({"temperature": float("nan"), "eos_token_id": 2}, {}),
        ({}, {}),
    ],
)  # fmt: skip
def test_usable_values_are_taken(tmp_path: Path, stated: dict[str, Any], found: dict[str, float]) -> None:
    (tmp_path / FILE).write_text(json.dumps(stated))
    assert sampling_defaults(tmp_path) == found


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff"])
def test_what_is_no_file_of_parameters_recommends_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert sampling_defaults(tmp_path) == {}
