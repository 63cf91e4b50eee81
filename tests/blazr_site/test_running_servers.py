"""Commands find the server that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from blazr_site.running_servers import LOCK_FILE, announced, is_running, running_servers
from inference.host.disk import kernel_lock


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def server(place: Path) -> Path:
    place.mkdir()
    return place


def test_a_server_is_found_while_its_lock_is_held(own_place: Path) -> None:
    data = server(own_place / "one")
    with announced(data):
        assert running_servers() == []
        with kernel_lock(data / LOCK_FILE):
            assert is_running(data) and running_servers() == [data]
    with kernel_lock(data / LOCK_FILE):
        assert running_servers() == []


def test_a_place_that_others_can_write_to_is_not_believed(own_place: Path) -> None:
    data = server(own_place / "one")
    with announced(data), kernel_lock(data / LOCK_FILE):
        (place,) = own_place.glob("blazr-*-servers")
        place.chmod(0o777)
        assert running_servers() == []
