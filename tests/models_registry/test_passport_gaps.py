"""A passport holds for the files and facts that it was made of, and one line says what is missing otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.utils import timezone

from models_registry import services
from models_registry.models import Checkpoint, Passport
from models_registry.passport_gaps import passport_gap, passport_identity, passport_list
from tests.models_registry.detection.builders import copy_bare_demo

pytestmark = pytest.mark.django_db

PASSED = {"name": "logits", "state": "passed", "words": "", "figures": {}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return services.checkpoint_register(path=copy_bare_demo(tmp_path / "demo"), served_model_name="tiny")


def passport(checkpoint: Checkpoint, *entries: dict, **values: object) -> Passport:
    defaults = {"state": "done", "identity": passport_identity(checkpoint), "active_at": timezone.now()}
    return Passport.objects.create(source=checkpoint, source_name="tiny", entries=list(entries), **defaults | values)


def test_what_is_missing(checkpoint: Checkpoint) -> None:
    assert passport_gap(checkpoint) == "it has none; make one on its page"
    passport(checkpoint, state="failed")
    assert passport_gap(checkpoint) == "it has none; make one on its page"
    row = passport(checkpoint, state="running")
    assert passport_gap(checkpoint) == "its passport is being made"
    row.delete()
    failed = [{**PASSED, "name": name, "state": "failed"} for name in ("tokenizer", "int4")]
    passport(checkpoint, PASSED, *failed)
    assert passport_gap(checkpoint) == "it failed: tokenizer, int4"
    passport(checkpoint, PASSED, {**PASSED, "state": "skipped"})
    assert passport_gap(checkpoint) == ""
    assert len(passport_list(checkpoint)) == 3


def test_other_files_and_facts_need_another_passport(checkpoint: Checkpoint) -> None:
    passport(checkpoint, PASSED)
    services.checkpoint_refresh(checkpoint=checkpoint)
    assert passport_gap(checkpoint) == ""
    services.checkpoint_override_set(checkpoint=checkpoint, fact="max_position_embeddings", value=32)
    assert passport_gap(checkpoint).startswith("its files or facts have changed since it was made")
    services.checkpoint_override_clear(checkpoint=checkpoint, fact="max_position_embeddings")
    assert passport_gap(checkpoint) == ""
    os.utime(Path(checkpoint.path) / "model.safetensors", (1, 1))
    services.checkpoint_refresh(checkpoint=checkpoint)
    assert passport_gap(checkpoint).startswith("its files or facts have changed")


def test_damaged_entries_are_no_error(checkpoint: Checkpoint) -> None:
    Passport.objects.filter(pk=passport(checkpoint, PASSED).pk).update(entries="x")
    assert passport_gap(checkpoint) == "it has none; make one on its page"
    Passport.objects.update(entries=["x", {"name": "logits"}, PASSED])
    assert passport_gap(checkpoint) == ""
    assert Passport.objects.get().shown_entries == [PASSED]
