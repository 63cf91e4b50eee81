"""Two checkpoints side by side, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.utils import timezone

from models_registry import comparison
from models_registry.models import Checkpoint, Passport
from models_registry.selectors import checkpoint_inspection

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


def test_tensors_of_another_type_differ(two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, two_dtypes)
    found = comparison.tensor_lines(one, other)
    assert found.num_changed == len(one.tensors) and found.num_same == 0
    assert found.changed[0].first.startswith("F32 ") and found.changed[0].second.startswith("F16 ")
    same = comparison.tensor_lines(one, one)
    assert (same.num_same, same.changed, same.only_first) == (len(one.tensors), [], [])


def test_tensors_of_one_alone_are_named(two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, two_dtypes)
    name = next(iter(other.tensors))
    info = other.tensors.pop(name)
    found = comparison.tensor_lines(one, other)
    assert found.only_first[0][0] == name and found.num_only_first == 1 and found.num_only_second == 0
    assert comparison.tensor_lines(other, one).only_second[0][0] == name and info


def test_sizes_and_layers(two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = map(checkpoint_inspection, two_dtypes)
    lines = {line.name: line for line in comparison.size_lines(one, other)}
    assert lines["On disk"].differs and lines["On disk"].remark.startswith("-") and not lines["Parameters"].differs
    assert lines["Context"].first.endswith(" tokens")
    layers = comparison.layer_lines(one, other)
    assert not any(line.differs for line in layers)
    assert sum(2 if " to " in line.name else 1 for line in layers) <= len(one.spec.layers) <= 9


def test_configs_are_joined_by_name_differences_first(two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    lines = comparison.config_lines(*two_dtypes)
    assert lines[0].name == "note" and lines[0].first == "" and lines[0].differs and not lines[-1].differs
    (Path(two_dtypes[0].directory) / "config.json").unlink()
    assert all(line.first == "" for line in comparison.config_lines(*two_dtypes))


def test_what_was_measured_stands_side_by_side(two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    figures = {"decode_tokens_per_s": 12.5, "weights_bytes": 1_681_000.0, "num_tokens": 12345, "bad": HOSTILE}
    Passport.objects.create(
        source=two_dtypes[0], source_name="x", state="done", identity="x", active_at=timezone.now(),
        entries=[{"name": "speed", "state": "passed", "words": "", "figures": figures}],
    )  # fmt: skip
    lines = {line.name: line for line in comparison.measured_lines(*two_dtypes)}
    assert lines["speed: decode tokens per s"].first == "12.5" and lines["speed: decode tokens per s"].second == ""
    assert lines["passport: speed"].first == "passed" and len(lines) == 4
    assert (lines["speed: weights"].first, lines["speed: num tokens"].first) == ("1.6 MiB", "12,345")
