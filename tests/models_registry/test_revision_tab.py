"""The revisions' tab: histories of aliases, training, and what changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from safetensors.numpy import load_file, save_file

from models_registry import services
from models_registry.aliases import alias_promote
from models_registry.models import Checkpoint, RunStep, TrainingRun
from models_registry.revision_tab import _by_layer, _relative
from tests.models_registry.runs.trainers import oxidizr_step

Looks = Callable[[int], list[RunStep]]

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair(hybrid: Path, tmp_path: Path) -> tuple[Checkpoint, Checkpoint]:
    """Two revisions of ``best``: in the second one tensor has doubled."""
    place = shutil.copytree(hybrid, tmp_path / "after")
    tensors = load_file(place / "model.safetensors")
    name = next(name for name in tensors if "layers.1." in name)
    tensors[name] = tensors[name] * np.float32(2)
    save_file(tensors, place / "model.safetensors")
    rows = services.checkpoint_register(path=hybrid), services.checkpoint_register(path=place)
    for row in rows:
        alias_promote(name="best", checkpoint=row, author_name="vera")
    return rows


def test_revisions_of_an_alias_are_listed(browser: Client, pair: tuple[Checkpoint, Checkpoint]) -> None:
    text = browser.get(f"/models/{pair[1].pk}/?tab=revisions").content.decode()
    assert "best@1" in text and "best@2" in text and "2 revisions" in text and "vera" in text
    assert text.count("What changed from revision") == 1 and f"from={pair[0].pk}" in text
    assert text.index("best@2") < text.index(">current<") < text.index("best@1")


def test_changes_are_computed_on_demand(browser: Client, pair: tuple[Checkpoint, Checkpoint]) -> None:
    address = f"/models/{pair[1].pk}/?tab=revisions"
    assert "changed since" not in browser.get(address).content.decode()
    text = browser.get(f"{address}&from={pair[0].pk}").content.decode()
    assert "1 tensor changed since" in text and "layer 1" in text
    assert ">1</td>" in text.split('id="changed"')[1]  # it doubled: the norm of the difference is that before
    region = browser.get(f"{address}&from={pair[0].pk}", headers={"HX-Target": "changes-region"}).content.decode()
    assert region.startswith('<div id="changes-region">') and "1 tensor changed" in region
    assert "no checkpoint with the id" in browser.get(f"{address}&from=nothing").content.decode()


def test_deleted_checkpoints_stay_in_the_history(browser: Client, pair: tuple[Checkpoint, Checkpoint]) -> None:
    Checkpoint.objects.filter(pk=pair[0].pk).delete()
    text = browser.get(f"/models/{pair[1].pk}/?tab=revisions").content.decode()
    assert "(deleted)" in text and "What changed from" not in text


def test_models_without_an_alias_say_so(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    text = browser.get(f"/models/{row.pk}/?tab=revisions").content.decode()
    assert "No alias has meant this model" in text and "No other model has the same family" in text


def test_a_training_run_has_its_curve(browser: Client, run: TrainingRun, directory: Path, looks: Looks) -> None:
    for number in (10, 20):
        oxidizr_step(directory, number)
    looks(2)
    for number, loss in ((10, 3.0), (20, 2.0)):
        run.steps.filter(number=number).update(loss=loss, measured_at=timezone.now())
    step = run.steps.get(number=20)
    text = browser.get(f"/models/{step.checkpoint_id}/?tab=revisions").content.decode()
    assert "Held-out loss over training steps" in text and f"{run.name}@1" in text and "3.0000" in text
    assert "step 20" in text and "training run</a>" in text


def test_norms_are_joined() -> None:
    changes = [
        {"name": "a", "squares": [1.0, 4.0], "count": 2, "num_read": 2},
        {"name": "b", "squares": [0.0, 6.0], "count": 4, "num_read": 2},
    ]
    assert _relative(changes) == pytest.approx(0.25)
    assert _relative([{**changes[0], "squares": None}]) is None
    layers = _by_layer(changes, {"a": 3})
    assert [(item["label"], item["relative"], item["share"]) for item in layers] == [
        ("layer 3", 0.5, 1.0),
        ("outside of the layers", 0.0, 0.0),
    ]
