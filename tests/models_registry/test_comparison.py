"""Two checkpoints side by side, and the page that shows them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from models_registry import comparison, services
from models_registry.models import Checkpoint, Passport
from models_registry.selectors import checkpoint_inspection
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def pair(hybrid: Path, tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    shapes, config = small_hybrid()
    other = write_checkpoint(tmp_path / "other", shapes, {**config, "note": HOSTILE}, dtype="float16")
    ignored = {"config.ignored_keys": "note"}
    return services.checkpoint_register(path=hybrid), services.checkpoint_register(path=other, overrides=ignored)


def test_tensors_of_another_type_differ(pair: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, pair)
    found = comparison.tensor_lines(one, other)
    assert found.num_changed == len(one.tensors) and found.num_same == 0
    assert found.changed[0].first.startswith("F32 ") and found.changed[0].second.startswith("F16 ")
    same = comparison.tensor_lines(one, one)
    assert (same.num_same, same.changed, same.only_first) == (len(one.tensors), [], [])


def test_tensors_of_one_alone_are_named(pair: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, pair)
    name = next(iter(other.tensors))
    info = other.tensors.pop(name)
    found = comparison.tensor_lines(one, other)
    assert found.only_first[0][0] == name and found.num_only_first == 1 and found.num_only_second == 0
    assert comparison.tensor_lines(other, one).only_second[0][0] == name and info


def test_sizes_and_layers(pair: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, pair)
    lines = {line.name: line for line in comparison.size_lines(one, other)}
    assert lines["On disk"].differs and lines["On disk"].remark.startswith("-") and not lines["Parameters"].differs
    layers = comparison.layer_lines(one, other)
    assert not any(line.differs for line in layers)
    assert sum(2 if " to " in line.name else 1 for line in layers) <= len(one.spec.layers) <= 9


def test_configs_are_joined_by_name_differences_first(pair: tuple[Checkpoint, Checkpoint]) -> None:
    lines = comparison.config_lines(*pair)
    assert lines[0].name == "note" and lines[0].first == "" and lines[0].differs and not lines[-1].differs
    (Path(pair[0].directory) / "config.json").unlink()
    assert all(line.first == "" for line in comparison.config_lines(*pair))


def test_what_was_measured_stands_side_by_side(pair: tuple[Checkpoint, Checkpoint]) -> None:
    figures = {"decode_tokens_per_s": 12.5, "bad": HOSTILE}
    Passport.objects.create(
        source=pair[0], source_name="x", state="done", identity="x", active_at=timezone.now(),
        entries=[{"name": "speed", "state": "passed", "words": "", "figures": figures}],
    )  # fmt: skip
    lines = {line.name: line for line in comparison.measured_lines(*pair)}
    assert lines["speed: decode tokens per s"].first == "12.5" and lines["speed: decode tokens per s"].second == ""
    assert lines["passport: speed"].first == "passed" and len(lines) == 2


def test_the_page(browser: Client, pair: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = pair
    text = browser.get(f"/models/compare/?a={one.pk}&b={other.pk}").content.decode()
    assert "differ" in text and "F16 " in text and HOSTILE not in text and "&lt;script&gt;" in text
    assert " style=" not in text
    assert browser.get(f"/models/compare/?pick={one.pk}&pick={other.pk}").content.decode().count("F16 ") > 1
    half = browser.get(f"/models/compare/?pick={one.pk}").content.decode()
    assert "Choose two models" in half and f'value="{one.pk}" selected' in half
    assert browser.get("/models/compare/?a=x&b=y").status_code == 404
    ticks = browser.get("/models/").content.decode()
    assert ticks.count('name="pick"') == 2 and "Compare two" in ticks


def test_a_model_without_its_files_is_compared_by_its_row(browser: Client, pair: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = pair
    shutil.rmtree(other.directory)
    assert browser.get(f"/models/compare/?a={one.pk}&b={other.pk}").status_code == 200
