"""Figures of decoded weights: those of the values that independent writers say, for every format; and bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from blazr_site import coded_tensor_child
from blazr_site.coded_tensor_child import summarise
from inference.errors import CorruptCheckpoint, InvalidRequest
from inference.modelling.spec_json import encode
from models_registry.checkpoint_jobs import follow
from models_registry.job_process import JobProcess
from tests.inference.modelling.encodings.formats import FORMATS
from tests.inference.modelling.encodings.tables import decoded_table


def written(directory: Path, name: str) -> tuple[dict[str, Any], np.ndarray]:
    """The request for a weight in one of ``FORMATS``, and its values."""
    form = FORMATS[name]
    made, values = form.make(np.random.default_rng(1), 64, 128)
    tensors = {f"x.{leaf}": part.contiguous() for leaf, part in made.items()}
    path = directory / "model.safetensors"
    save_file(tensors, path)
    (item,) = decoded_table(tensors, form.config).encoded
    return {"paths": [str(path)], "name": item.name, "encoded": encode(item)}, values


@pytest.mark.parametrize("name", FORMATS)
def test_figures_are_those_of_the_decoded_values(tmp_path: Path, name: str) -> None:
    request, values = written(tmp_path, name)
    found = summarise(**json.loads(json.dumps(request)))
    assert (found["count"], found["num_read"]) == (values.size, values.size)
    for figure, expected in (
        ("min", values.min()), ("max", values.max()), ("mean", values.mean(dtype=np.float64)),
        ("std", values.std(dtype=np.float64)),
    ):  # fmt: skip
        assert found[figure] == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    assert sum(found["histogram"]["bins"]) + found["histogram"]["below"] + found["histogram"]["above"] == values.size


def test_a_large_weight_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, values = written(tmp_path, "gptq-4")
    monkeypatch.setattr(coded_tensor_child, "MAX_DECODED_VALUES", 1000)
    monkeypatch.setattr("models_registry.tensor_numbers.PLACE_VALUES", 100)
    found = summarise(**request)
    assert (found["count"], found["num_read"]) == (values.size, 1000)


def test_codes_that_take_too_much_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, _ = written(tmp_path, "awq")
    monkeypatch.setattr(coded_tensor_child, "MAX_PART_BYTES", 1000)
    with pytest.raises(InvalidRequest, match=r"at most 1000 B are decoded"):
        summarise(**request)


def test_memory_that_runs_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, _ = written(tmp_path, "awq")

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(coded_tensor_child, "statistics", fail)
    with pytest.raises(InvalidRequest, match="too much memory"):
        summarise(**request)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    request, _ = written(tmp_path, "awq")
    path = Path(request["paths"][0])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        summarise(**request)


def test_the_process_answers_within_its_limits(tmp_path: Path) -> None:
    request, values = written(tmp_path, "nf4-nested")
    with JobProcess("blazr_site.coded_tensor_child", request) as child:
        found = follow(child, lambda share, stage: None, max_seconds=120)
    assert found["count"] == values.size
