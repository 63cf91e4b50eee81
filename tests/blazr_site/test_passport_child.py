"""The child that makes a passport: each check passes for what is right, and fails or says why for what isn't."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blazr_site import job_child, passport_child
from blazr_site.passport_child import check_chat_template, check_logits, check_tokenizer, make
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from inference.llm.options import LLMOptions
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.blazr_site.hugging_face import llama
from tests.models_registry.detection.builders import copy_bare_demo

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama") / "checkpoint-7")


def passport(path: Path, **members: Any) -> dict[str, dict[str, Any]]:
    request = {"overrides": {}, "device": "cpu", "served": {"dtype": "auto", "quant": "auto"}} | members
    made = make(path=str(path), **request, progress=lambda share, stage: None)
    json.dumps(made, allow_nan=False)
    return {entry["name"]: entry for entry in made["entries"]}


def test_a_checkpoint_of_the_trainer_passes(hugging_face: Path) -> None:
    found = passport(hugging_face)
    assert {name: entry["state"] for name, entry in found.items()} == {
        "tokenizer": "passed", "chat template": "passed", "logits": "passed", "speed": "passed", "int8": "passed",
        "int4": "passed",
    }  # fmt: skip
    assert "came back unchanged, with the token ids of transformers" in found["tokenizer"]["words"]
    figures = found["logits"]["figures"]
    assert (figures["mean_kl"] < 1e-6, figures["top1_agreement"], figures["num_tokens"] > 100) == (True, 1.0, True)
    assert 0 < found["int8"]["figures"]["mean_kl"] < found["int4"]["figures"]["mean_kl"]
    assert found["int4"]["figures"]["weights_bytes"] < found["int8"]["figures"]["weights_bytes"]
    assert found["speed"]["figures"]["decode_tokens_per_s"] > 0
    assert found["speed"]["figures"]["prefill_tokens_per_s"] > 0


def test_a_type_that_transformers_does_not_know_says_so() -> None:
    found = passport(PREBUILT_DIRECTORY)
    assert found["logits"]["state"] == "skipped"
    assert found["logits"]["words"] == "not compared: transformers doesn't read checkpoints of the format oxidizr."
    assert found["tokenizer"]["words"] == "5 texts in several scripts came back unchanged."


def inspected(path: Path, **overrides: Any) -> Inspection:
    return inspect_checkpoint(path, overrides=overrides)


def logits(path: Path, **overrides: Any) -> dict[str, Any]:
    inspection = inspected(path, **overrides)
    options = LLMOptions(dtype="float32")
    return check_logits(inspection, passport_child.prompts_of(inspection), options)


def test_another_arithmetic_fails(hugging_face: Path) -> None:
    """A rope base that a person has set wrongly."""
    found = logits(hugging_face, rope_theta=100.0)
    assert found["state"] == "failed"
    assert found["figures"]["mean_kl"] > 1e-3
    assert found["words"].endswith("; at most 0.001 is rounding.")


def test_without_transformers_it_says_so(hugging_face: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert logits(hugging_face)["words"] == (
        "not compared: transformers isn't installed here; pip install transformers."
    )
    assert check_tokenizer(inspected(hugging_face))["state"] == "passed"


def test_what_transformers_can_not_load_is_no_failure(hugging_face: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("first line\nsecond line")

    monkeypatch.setattr(passport_child, "reference_logits", broken)
    monkeypatch.setattr(passport_child, "reference_ids", broken)
    assert logits(hugging_face)["words"] == "not compared: transformers can't load it (first line)."
    assert check_tokenizer(inspected(hugging_face))["words"].endswith("can't read the tokenizer (first line).")


def test_other_ids_than_transformers_fail(hugging_face: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passport_child, "reference_ids", lambda place, texts: [[1]] * len(texts))
    found = check_tokenizer(inspected(hugging_face))
    assert (found["state"], "transformers has other token ids for 'The quick brown fox jump'" in found["words"]) == (
        "failed", True,
    )  # fmt: skip


def test_a_tokenizer_that_loses_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    load = passport_child.load_tokenizer

    def lossy(spec):
        tokenizer = load(spec)
        tokenizer.decode = lambda ids, **_: "lower case"
        return tokenizer

    monkeypatch.setattr(passport_child, "load_tokenizer", lossy)
    found = check_tokenizer(inspected(PREBUILT_DIRECTORY))
    assert found["state"] == "failed"
    assert found["words"] == "5 of 5 texts came back changed: 'The quick brown fox jump' became 'lower case'."


def test_templates_that_can_not_be_rendered_fail() -> None:
    found = check_chat_template(inspected(PREBUILT_DIRECTORY, chat_template="{{ messages[99].content.x.y }}"))
    assert found["state"] == "failed"
    assert check_chat_template(inspected(PREBUILT_DIRECTORY, chat_template=TEMPLATE))["state"] == "passed"


def test_without_a_tokenizer_the_rest_is_measured(tmp_path: Path) -> None:
    found = passport(copy_bare_demo(tmp_path / "bare"), overrides={"vocabulary": "none"})
    assert [found[name]["state"] for name in ("tokenizer", "chat template", "speed", "int8")] == [
        "skipped", "skipped", "passed", "passed",
    ]  # fmt: skip
    assert "predictions of random tokens" in found["int8"]["words"]


def test_figures_without_numbers_are_left_out() -> None:
    found = passport_child.entry("x", "failed", "words", a=math.nan, b=math.inf, c=1.5, d=2)
    assert found["figures"] == {"c": 1.5, "d": 2}


def test_an_error_of_a_check_is_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise InvalidRequest("no.")

    for name in ("measure_speed", "measure_forms", "check_logits"):
        monkeypatch.setattr(passport_child, name, broken)
    found = passport(PREBUILT_DIRECTORY)
    assert (found["speed"]["state"], found["forms"]["words"]) == ("failed", "no.")


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "free_memory_bytes", lambda where: 1 << 20)
    with pytest.raises(InvalidRequest, match=r"takes .* of memory, cpu has 1\.0 MiB free; unload models"):
        passport(PREBUILT_DIRECTORY)
