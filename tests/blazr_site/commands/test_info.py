"""``blazr info``: equal neighbouring layers share a row; names that a data directory has."""

from __future__ import annotations

import json
import re
import sqlite3
from argparse import Namespace
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection

from blazr_site.commands import info
from blazr_site.commands.tables import output_console
from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import InvalidRequest
from models_registry.services import checkpoint_register


def test_equal_neighbours_share_a_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    layer = {"kind": "attention", "sizes": {"heads": 2}, "num_parameters": 1000}
    info._print_layers(output_console(), [layer, layer, {**layer, "kind": "mamba2"}, layer])
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["0-1", "attention"], ["2", "mamba2"], ["3", "attention"]]


def test_the_description_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert info.run(Namespace(model="demo", vocab=None, chat_template=None, override=[], json=False)) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("parameters", "state per token", "mla+moe", "certain"))
    assert re.search(r"state per sequence +[\d.]+ [KM]iB in float32\n", re.sub(" +\n", "\n", out))


@pytest.fixture
def data_dir(transactional_db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose database has the demo under the name ``lessons``, with a context set by hand."""
    checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="lessons", overrides={"max_position_embeddings": 77})
    if connection.vendor != "sqlite":
        pytest.skip("the data directory of a command has SQLite")
    connection.ensure_connection()
    place = tmp_path / "data"
    place.mkdir(mode=0o700)
    with closing(sqlite3.connect(place / "db.sqlite3")) as target:
        connection.connection.backup(target)
    monkeypatch.delenv("BLAZR_DATA_DIR", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)  # its ./data is the usual one
    return place


def context_of(capsys: pytest.CaptureFixture[str], name: str, **arguments: str) -> int:
    fixed = {"vocab": None, "chat_template": None, "override": [], "json": True, "name": None}
    assert info.run(Namespace(model=name, **fixed, **arguments)) == 0
    return int(json.loads(capsys.readouterr().out)["max_position_embeddings"])


def test_a_registered_name_is_described_as_it_is_stored(capsys, data_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(info, "running_servers", list)
    assert context_of(capsys, "lessons") == 77


def test_a_data_directory_is_named(capsys, data_dir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir("/")
    assert context_of(capsys, "lessons", BLAZR_DATA_DIR=str(data_dir)) == 77
    monkeypatch.setattr(info, "_stored", lambda name, place: None)
    with pytest.raises(InvalidRequest, match=r"no model 'demo' is registered in .*; blazr list --data-dir DIR shows"):
        context_of(capsys, "demo", BLAZR_DATA_DIR=str(data_dir))
    with pytest.raises(InvalidRequest, match="nowhere is no directory"):
        context_of(capsys, "lessons", BLAZR_DATA_DIR=str(tmp_path / "nowhere"))
