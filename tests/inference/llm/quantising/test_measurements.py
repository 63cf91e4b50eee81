"""What matrices lose: derived from two measured forms, and read again from the file of an earlier run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.quantising.measurements import derive_divergences, read_measurements
from inference.llm.quantising.measuring import Measurement
from inference.llm.quantising.parts import KINDS
from inference.llm.quantising.quantise import Limit, Quantised
from inference.llm.quantising.writing import PLAN_FILE
from tests.inference.llm.quantising.checkpoints import inspect, parts_of, quantise

LIMIT = Limit(size_bytes=1_300_000)


def test_divergences_between_the_measured_ones_follow_the_error() -> None:
    errors = {"int2": 1.0, "int3": 0.25, "int4": 0.0625, "int5": 0.03, "int6": 0.01, "int8": 0.0}
    found = derive_divergences({"int2": 0.8, "int4": 0.2}, errors)  # type: ignore[arg-type, dict-item]
    assert list(found) == list(KINDS)
    assert found["int3"] == pytest.approx(0.4), "half of the way in both logarithms"
    assert found["int5"] == pytest.approx(0.2 * 0.03 / 0.0625)
    assert (found["int2"], found["int4"], found["int8"]) == (0.8, 0.2, 0)
    exact = derive_divergences({"int2": 0.0, "int4": 0.0}, dict.fromkeys(errors, 0.0))  # type: ignore[arg-type]
    assert set(exact.values()) == {0}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Quantised]:
    """The file of a run over the demo model, and its result."""
    target = tmp_path_factory.mktemp("earlier") / "out"
    found = quantise(inspect(PREBUILT_DIRECTORY), target, LIMIT, with_curve=False)
    return target / PLAN_FILE, found


def test_an_earlier_run_is_planned_from_without_measuring(
    earlier: tuple[Path, Quantised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before = earlier
    monkeypatch.setattr(Measurement, "squared_error", None)  # which only measuring a part calls
    demo = inspect(PREBUILT_DIRECTORY)
    same = quantise(demo, tmp_path / "same", LIMIT, with_curve=False, measurements=file)
    assert (same.plan, same.divergence) == (before.plan, before.divergence)
    weights = [(path / "model.safetensors").read_bytes() for path in (file.parent, tmp_path / "same")]
    assert weights[0] == weights[1]
    smaller = quantise(demo, tmp_path / "smaller", Limit(size_bytes=900_000), with_curve=False, measurements=file)
    assert smaller.size_bytes <= 900_000 and smaller.divergence.mean_kl > before.divergence.mean_kl
    written = [json.loads(path.read_text())["parts"] for path in (file, tmp_path / "smaller" / PLAN_FILE)]
    assert [part["divergences"] for part in written[0]] == [part["divergences"] for part in written[1]]
    assert [part["measured"] for part in written[0]] == [part["measured"] for part in written[1]]


def test_measurements_of_another_text_are_refused(earlier: tuple[Path, Quantised], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"other weights or another text: .* over 46 .*, here .* over 44"):
        quantise(inspect(PREBUILT_DIRECTORY), tmp_path / "out", LIMIT, count=46, measurements=earlier[0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measured": None}, "it lacks what a quantisation writes"),
        ({"measured": {"stored_perplexity": "many", "num_tokens": 46}}, "it lacks what a quantisation writes"),
        ({"parts": 3}, "it lacks what a quantisation writes"),
        ({"parts": []}, r"it is of another model: .* is in one of the two only"),
        ({"num_weights": 1}, "has other weights"),
        ({"divergences": {"int2": 1.0}}, "it lacks what a quantisation writes .*int3"),
        ({"divergences": dict.fromkeys(KINDS, float("nan"))}, "has other weights"),
        ({"divergences": dict.fromkeys(KINDS, -1.0)}, "has other weights"),
        ({"name": "other"}, "another model"),
        ({"name": 3}, "another model"),
        ({"measured": {"stored_perplexity": 10**400, "num_tokens": 46}}, "lacks what a quantisation writes"),
    ],
)
def test_a_file_that_contradicts_the_checkpoint_is_refused(
    earlier: tuple[Path, Quantised], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    content = json.loads(earlier[0].read_text())
    for key, value in changes.items():
        (content if key in content else content["parts"][0])[key] = value
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidRequest, match=message) as raised:
        read_measurements(file, parts_of(inspect(PREBUILT_DIRECTORY)))
    assert raised.value.param == "measurements"
    assert "leave out --measurements" in raised.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "it isn't JSON"), (b"\xff", "it isn't JSON"), (b"[" * 10**6, "it isn't JSON"), (b"[]", "it lacks what")],
)
def test_what_is_no_file_of_measurements(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=message):
        read_measurements(file, [])
    with pytest.raises(InvalidRequest, match="No such file"):
        read_measurements(tmp_path / "missing.json", [])
    with pytest.raises(InvalidRequest, match="Is a directory"):
        read_measurements(tmp_path, [])
