"""Paths on the server that an account enters: which are taken, and what stands for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.http import QueryDict

from inference.errors import Conflict, InvalidRequest, PermissionRefused
from models_registry import path_registration
from models_registry.models import Checkpoint
from models_registry.path_registration import checked_place, overrides_of, register, report

pytestmark = pytest.mark.django_db


@pytest.fixture
def allowed(hybrid: Path, settings) -> Path:
    settings.BLAZR_MODELS = []
    settings.BLAZR_WATCHED_DIRECTORIES = [str(hybrid)]
    return hybrid


def test_paths_outside_are_refused_alike_whether_they_exist_or_not(allowed: Path) -> None:
    assert checked_place(str(allowed)) == allowed
    outside = allowed.parent / "outside"
    outside.mkdir()
    for text in (str(outside), str(allowed / ".." / "outside"), str(allowed.parent / "nothing"), "/etc/passwd", "/"):
        with pytest.raises(PermissionRefused, match="is in no directory of the server's settings; name one in blazr"):
            checked_place(text)
    for text in ("", "a\0b", "x" * 5000, f"/{'y' * 300}"):
        with pytest.raises((InvalidRequest, PermissionRefused)):
            checked_place(text)


def test_links_do_not_lead_out(allowed: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (allowed / "inside.json").symlink_to(allowed / "config.json")
    assert checked_place(str(allowed)) == allowed
    (allowed / "generation_config.json").symlink_to(secret)
    for place in (allowed, allowed / "model.safetensors", allowed / "generation_config.json"):
        with pytest.raises(
            PermissionRefused, match=r"generation_config\.json' leads by a link to what is in no directory"
        ):
            checked_place(str(place))


def test_dots_are_taken_out_of_what_is_stored(allowed: Path) -> None:
    assert checked_place(f"{allowed}/../{allowed.name}") == allowed.resolve()


def test_facts_are_ticked_entered_or_refused(allowed: Path) -> None:
    posted = QueryDict(mutable=True)
    posted.setlist("set", ['{"norm.eps": 1e-06}', '{"max_seq_len": 64}'])
    posted.update({"fact": "rope_theta", "value": " 5000 "})
    assert overrides_of(posted) == {"norm.eps": 1e-06, "max_position_embeddings": 64, "rope.theta": 5000.0}
    for values, message in (
        ({"fact": "depth", "value": "3"}, "is not a fact that can be set"),
        ({"fact": "norm.eps", "value": "small"}, "norm.eps can't be 'small'"),
        ({"set": "[1"}, "can't be read; set it again"),
        ({"fact": "norm.eps", "value": "[" * 100_000}, "norm.eps can't be"),
        ({"set": "[1]"}, "can't be read; set it again"),
        ({"set": "[[1, 2]]"}, "can't be read; set it again"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            overrides_of(_posted(values))


def test_a_directory_of_too_many_entries_is_refused(allowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_registration, "MAX_DIRECTORY_ENTRIES", 1)
    with pytest.raises(InvalidRequest, match="has more than 1 entries"):
        checked_place(str(allowed))


def _posted(values: dict[str, str]) -> QueryDict:
    posted = QueryDict(mutable=True)
    posted.update(values)
    return posted


def test_a_report_stores_nothing_and_a_path_is_registered_once(allowed: Path) -> None:
    found = report(allowed, {"max_position_embeddings": 64})
    assert (found["report"]["max_position_embeddings"], found["name"], found["known"]) == (64, allowed.name, None)
    assert Checkpoint.objects.count() == 0
    row = register(allowed, overrides={"max_position_embeddings": 64}, name="mine", author=None)
    assert (row.served_model_name, row.source, row.max_position_embeddings) == ("mine", "path", 64)
    assert report(allowed, {})["known"] == row
    with pytest.raises(Conflict, match="is registered already, as mine"):
        register(allowed, overrides={}, name="other", author=None)
