"""transformers is a reference for what it knows; code of a checkpoint is never run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from blazr_site.reference_logits import reason_against, reference_ids, reference_logits
from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry.detection.inspection import inspect_checkpoint
from tests.blazr_site.hugging_face import VOCAB_SIZE, llama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama") / "checkpoint")


def test_a_known_type_has_a_reference(checkpoint: Path) -> None:
    assert reason_against(inspect_checkpoint(checkpoint)) == ""
    (found,) = reference_logits(checkpoint, [[1, 2, 3]], torch.float32)
    assert (found.shape, found.dtype) == ((3, VOCAB_SIZE), torch.float32)
    assert reference_ids(checkpoint, ["a", ""])[1] == []


def test_other_checkpoints_have_none(checkpoint: Path, tmp_path: Path) -> None:
    assert "format oxidizr" in reason_against(inspect_checkpoint(PREBUILT_DIRECTORY))
    place = shutil.copytree(checkpoint, tmp_path / "renamed")
    (place / "model.safetensors").rename(place / "weights.safetensors")
    assert "a directory with model.safetensors only" in reason_against(inspect_checkpoint(place))


def test_code_of_a_checkpoint_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    place = shutil.copytree(checkpoint, tmp_path / "remote")
    config = json.loads((place / "config.json").read_text())
    inspection = inspect_checkpoint(place)
    auto_map = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (place / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    (place / "config.json").write_text(json.dumps({**config, "auto_map": auto_map}))
    assert reference_logits(place, [[1, 2]], torch.float32)[0].shape == (2, VOCAB_SIZE)
    (place / "config.json").write_text(json.dumps({**config, "auto_map": auto_map, "model_type": "own"}))
    assert "doesn't know the type 'own', and a checkpoint's code is never run" in reason_against(inspection)
    with pytest.raises(Exception, match=r".+"):
        reference_logits(place, [[1, 2]], torch.float32)
    assert not (tmp_path / "ran").exists()
