"""The child that measures a checkpoint of a run, with the demo model: the same figures each time, bad ones named."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blazr_site import job_child
from blazr_site.step_child import measure
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.options import LLMOptions
from inference.llm.quality import measure_quality
from inference.text.tokenisation.tokenizer import load_tokenizer
from models_registry.detection.inspection import inspect_checkpoint
from tests.models_registry.detection.builders import copy_bare_demo

TEXT = "The with statement is used to wrap the execution of a block with methods of a context manager. " * 4


def measured(path: Path = PREBUILT_DIRECTORY, **members: Any) -> tuple[dict[str, Any], list[tuple[float, str]]]:
    reports: list[tuple[float, str]] = []
    request = {
        "overrides": {}, "prompts": ["The statement", "x = "], "max_tokens": 8, "temperature": 0.7, "seed": 3,
        "text": TEXT, "loss_tokens": 64, "device": "cpu",
    }  # fmt: skip
    found = measure(path=str(path), **request | members, progress=lambda share, stage: reports.append((share, stage)))
    return found, reports


def test_loss_and_samples_are_the_same_each_time() -> None:
    found, reports = measured()
    assert measured()[0] == found
    inspection = inspect_checkpoint(PREBUILT_DIRECTORY)
    tokenizer = load_tokenizer(inspection.tokenizer)
    token_ids = tokenizer.encode(TEXT)[:64]
    tokenizer.close()
    (quality,) = measure_quality(
        inspection.spec, inspection.weight_paths, token_ids, ["none"], options=LLMOptions(dtype="float32"), window=512
    )
    assert found["loss"] == pytest.approx(math.log(quality.perplexity), rel=1e-4)  # float32, other shapes of products
    assert (found["num_tokens"], found["problem"]) == (63, "")
    assert [sample["prompt"] for sample in found["samples"]] == ["The statement", "x = "]
    assert all(0 < sample["num_tokens"] <= 8 and not sample["error"] for sample in found["samples"])
    assert measured(seed=4)[0]["samples"] != found["samples"]
    assert [share for share, _ in reports] == sorted(share for share, _ in reports)
    assert {"inspecting", "loading weights", "reading the held-out text", "sample 2 of 2", "done"} <= {
        stage for _, stage in reports
    }


def test_a_diverged_checkpoint_says_so(tmp_path: Path) -> None:
    place = shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "broken")
    tensors = load_file(place / "model.safetensors")
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], float("nan"))
    save_file(tensors, place / "model.safetensors")
    found, _ = measured(place)
    assert found["loss"] is None
    assert found["problem"].startswith("the training has diverged: ")
    assert ["no usable probabilities" in sample["error"] for sample in found["samples"]] == [True, True]


def test_a_prompt_that_is_too_long_costs_only_its_sample() -> None:
    found, _ = measured(overrides={"max_position_embeddings": 16}, prompts=["word " * 40, "x"])
    assert (found["samples"][0]["text"], bool(found["samples"][0]["error"])) == ("", True)
    assert found["samples"][1]["error"] == ""


def test_without_a_tokenizer_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no tokenizer is known for it"):
        measured(copy_bare_demo(tmp_path / "bare"), overrides={"vocabulary": "none"})


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "free_memory_bytes", lambda where: 1 << 20)
    with pytest.raises(InvalidRequest, match=r"takes .* of memory, cpu has 1\.0 MiB free; unload models"):
        measured()
