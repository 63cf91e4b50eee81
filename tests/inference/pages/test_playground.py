"""What can be chosen in the playground."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inference.pages.playground import model_choices
from models_registry import services
from models_registry.aliases import alias_promote
from models_registry.models import Adapter, Checkpoint
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    shapes, config = small_hybrid()
    return write_checkpoint(tmp_path / "tiny-hybrid", shapes, config)


def test_every_name_has_the_abilities_of_its_checkpoint(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="first")
    second = services.checkpoint_register(
        path=shutil.copytree(hybrid, hybrid.with_name("copy")), served_model_name="second"
    )
    alias_promote(name="stable", checkpoint=row)
    alias_promote(name="stable", checkpoint=second)
    known = {"base": row, "rank": 4, "num_values": 8, "size_bytes": 32, "digest": "0" * 64}
    Adapter.objects.create(name="sql", path="/nowhere/sql", **known)
    Adapter.objects.create(name="gone", path="/nowhere/gone", state=Adapter.State.MISSING, **known)
    found = [(choice["kind"], choice["name"], choice["base"]) for choice in model_choices()]
    assert found == [
        ("Models", "first", "first"),
        ("Models", "second", "second"),
        ("Aliases", "stable", "second"),
        ("Revisions", "stable@2", "second"),
        ("Revisions", "stable@1", "first"),
        ("Adapters", "first:sql", "first"),
    ]


def test_what_can_not_be_served_is_left_out(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="first")
    alias_promote(name="stable", checkpoint=row)
    Checkpoint.objects.update(state=Checkpoint.State.MISSING)
    assert model_choices() == []


def test_abilities_are_read_from_the_inspection(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="first")
    inspection = Checkpoint.objects.get(pk=row.pk).inspection
    inspection["tokenizer"] |= {"kind": "huggingface", "chat_template": "{{ enable_thinking }}"}
    inspection["spec"]["vision"] = {"kind": "any"}
    Checkpoint.objects.update(inspection=inspection)
    (choice,) = model_choices()
    names = ("has_text", "has_chat", "has_vision", "has_effort")
    assert {name: choice[name] for name in names} == dict.fromkeys(names, True)
    assert choice["context"] == row.max_position_embeddings
    Checkpoint.objects.update(settings={"max_model_len": 32})
    assert model_choices()[0]["context"] == 32
