"""A process is set up for a command; commands that look at a server follow the one that runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from blazr_site.commands import set_up
from blazr_site.commands.set_up import follow_running_server
from blazr_site.running_servers import LOCK_FILE, announced
from inference.errors import InvalidRequest
from inference.host.disk import kernel_lock


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("BLAZR_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(set_up, "use_options", lambda options: None)
    return tmp_path


def server(place: Path) -> Path:
    place.mkdir()
    return place


def test_list_and_ps_follow_the_one_server(own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = server(own_place / "one")
    arguments = argparse.Namespace(BLAZR_DATA_DIR=None, config=None)
    with announced(data), kernel_lock(data / LOCK_FILE):
        follow_running_server(arguments)
    assert str(data) == arguments.BLAZR_DATA_DIR
    assert str(data) in capsys.readouterr().err


@pytest.mark.parametrize("named", ["option", "variable", "file"])
def test_what_is_named_is_used(own_place: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    data = server(own_place / "one")
    given = "elsewhere" if named == "option" else None
    if named == "variable":
        monkeypatch.setenv("BLAZR_DATA_DIR", "elsewhere")
    if named == "file":
        (own_place / "blazr.toml").write_text("")
    arguments = argparse.Namespace(BLAZR_DATA_DIR=given, config=None)
    with announced(data), kernel_lock(data / LOCK_FILE):
        follow_running_server(arguments)
    assert given == arguments.BLAZR_DATA_DIR


def test_several_servers_are_named(own_place: Path) -> None:
    one, two = server(own_place / "one"), server(own_place / "two")
    arguments = argparse.Namespace(BLAZR_DATA_DIR=None, config=None)
    with (
        announced(one),
        announced(two),
        kernel_lock(one / LOCK_FILE),
        kernel_lock(two / LOCK_FILE),
        pytest.raises(InvalidRequest, match=r"2 servers run here.*one.*two"),
    ):
        follow_running_server(arguments)
