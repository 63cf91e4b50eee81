"""Only directories that the settings name are watched, through whatever link."""

from __future__ import annotations

from pathlib import Path

import pytest

from blazr_site.settings.models import ConfiguredModel
from inference.errors import PermissionRefused
from models_registry.runs.allowed import allowed_directories, check_allowed, is_allowed


@pytest.fixture
def places(tmp_path: Path, settings) -> Path:
    for name in ("model", "runs/nano", "other"):
        (tmp_path / name).mkdir(parents=True)
    settings.BLAZR_MODELS = [
        ConfiguredModel(str(tmp_path / "model")), ConfiguredModel("owner/name"),
        ConfiguredModel(str(tmp_path / "file.safetensors")), ConfiguredModel(str(tmp_path / ("x" * 300))),
    ]  # fmt: skip
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "runs")]
    return tmp_path


def test_the_models_of_the_settings_and_what_is_in_them(places: Path) -> None:
    assert allowed_directories() == [places / "runs", places / "model"]
    for name in ("model", "model/run", "runs", "runs/nano", "runs/not-there-yet"):
        assert is_allowed(places / name), name
    for name in ("", "other", "runs2", "runs/../other", "runs/nano/../../other"):
        assert not is_allowed(places / name), name


def test_links_lead_nowhere_else(places: Path) -> None:
    (places / "runs" / "link").symlink_to(places / "other")
    (places / "inward").symlink_to(places / "runs" / "nano")
    assert not is_allowed(places / "runs" / "link")
    assert is_allowed(places / "inward")
    with pytest.raises(PermissionRefused, match="nano' leads by a link to what is in no directory"):
        check_allowed(places / "runs" / "link" / "nano")


def test_a_refusal_does_not_say_what_is_there(places: Path) -> None:
    for name in ("other", "nothing"):
        with pytest.raises(PermissionRefused, match=rf"{name}' is in no directory of the server's settings; name one"):
            check_allowed(places / name)
