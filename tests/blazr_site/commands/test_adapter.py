"""``blazr adapter`` against the real registry over HTTP: add, list, remove, and what is refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from blazr_site.commands.adapter import run
from blazr_site.commands.arguments import COMMANDS
from blazr_site.server_client import RefusedByServer
from inference.access.api_keys import api_key_create
from inference.errors import InvalidRequest, UnknownModel
from inference.values.states import ModelState, ResidentAdapter
from models_registry import live
from models_registry.models import Adapter, Checkpoint
from models_registry.services import checkpoint_register
from tests.inference.llm.adapter_writing import write_adapter
from tests.inference.llm.harness import Checkpoint as TinyCheckpoint
from tests.inference.rows import make_adapter


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    COMMANDS["adapter"].add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def blazr(live_server, settings, tmp_path, monkeypatch, transactional_db, data_dir):
    """Runs ``blazr adapter …`` with a key of the server."""
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "adapters")]
    (tmp_path / "tiny").mkdir()
    TinyCheckpoint(tmp_path / "tiny")
    checkpoint_register(path=tmp_path / "tiny", served_model_name="tiny")
    key = api_key_create(name="boss", scopes=["admin"])[1]

    def call(*words: str, key: str = key) -> int:
        return run(parsed(*words, "--server", live_server.url, "--key", key))

    return call


def test_an_adapter_is_added_listed_and_removed(blazr, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = write_adapter(tmp_path / "adapters" / "sql", 1)
    assert blazr("add", "tiny", str(place)) == 0
    assert "has it as tiny:sql" in capsys.readouterr().err
    assert blazr("add", "tiny", str(place), "--name", "again") == 0
    assert blazr("list") == 0
    shown = capsys.readouterr().out
    assert "tiny:sql" in shown and "tiny:again" in shown and "lora" in shown
    assert blazr("list", "tiny", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == ["tiny:again", "tiny:sql"]
    assert [row["pinned"] for row in rows] == [False, False]
    assert blazr("remove", "tiny:sql") == 0
    assert [row.name for row in Adapter.objects.all()] == ["again"] and place.is_dir()


def test_a_path_is_that_of_the_users_directory(blazr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_adapter(tmp_path / "adapters" / "sql", 1)
    monkeypatch.chdir(tmp_path)
    assert blazr("add", "tiny", "adapters/sql") == 0
    assert Adapter.objects.get().path == str(place)


def test_what_is_not_there_is_said(blazr, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no model 'big' \(it has tiny\)"):
        blazr("add", "big", "/x")
    with pytest.raises(InvalidRequest, match="'tiny' is no adapter's name; give BASE:NAME"):
        blazr("remove", "tiny")
    with pytest.raises(UnknownModel, match="no adapter 'tiny:sql'"):
        blazr("remove", "tiny:sql")
    with pytest.raises(RefusedByServer, match="is in no directory of the server's settings") as caught:
        blazr("add", "tiny", "/etc")
    assert "BLAZR_API_KEY" not in caught.value.message
    with pytest.raises(RefusedByServer, match="BLAZR_API_KEY"):
        blazr("list", key=api_key_create(name="guest")[1])


def test_a_server_and_a_key_are_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BLAZR_API_KEY", raising=False)
    arguments = parsed("list", "--server", "http://127.0.0.1:9")
    with pytest.raises(InvalidRequest, match="needs an API key with the scope admin"):
        run(arguments)


def test_an_adapter_is_loaded_shown_and_unloaded(blazr, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = make_adapter(Checkpoint.objects.get(), "sql")
    seen: list[ResidentAdapter] = []
    monkeypatch.setattr(live, "look", lambda: live.Live({"a": ModelState("a", adapters=tuple(seen))}, ()))
    monkeypatch.setattr(live, "load_adapter", lambda *ids: next(iter(seen), None))
    monkeypatch.setattr(live, "unload_adapter", lambda *ids: next(iter(seen), None))
    assert blazr("load", "tiny:sql") == 0 and "will load tiny:sql with its base" in capsys.readouterr().err
    assert blazr("list") == 0 and "with its base" in capsys.readouterr().out
    seen.append(ResidentAdapter(str(row.pk), 3 << 20, num_requests=2))
    assert blazr("load", "tiny:sql") == 0 and "has tiny:sql in memory" in capsys.readouterr().err
    assert blazr("list") == 0 and "3.0 MiB, pinned, 2 running" in " ".join(capsys.readouterr().out.split())
    assert blazr("unload", "tiny:sql") == 0 and "unloads tiny:sql after 2 requests" in capsys.readouterr().err
    seen[:] = [ResidentAdapter(str(row.pk), 3 << 20)]
    assert blazr("unload", "tiny:sql") == 0 and "keeps it in memory for another name" in capsys.readouterr().err
    seen.clear()
    assert blazr("unload", "tiny:sql") == 0 and "has unloaded tiny:sql" in capsys.readouterr().err
    with pytest.raises(UnknownModel, match="no adapter 'tiny:csv'"):
        blazr("load", "tiny:csv")
