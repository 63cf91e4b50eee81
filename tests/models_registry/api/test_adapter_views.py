"""Adapters over HTTP: registered, listed, shown on the model's page, removed; refusals in OpenAI's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from inference.errors import UnknownModel
from inference.serving.served_models import served_model_read
from inference.values.states import ModelState, ResidentAdapter
from models_registry import live
from models_registry.models import Adapter, Checkpoint
from models_registry.services import checkpoint_register
from tests.accounts import account
from tests.inference.llm.adapter_writing import write_adapter, write_xlora
from tests.inference.llm.harness import Checkpoint as TinyCheckpoint
from tests.inference.rows import make_adapter
from tests.models_registry.api.test_run_views import error_of, send
from tests.models_registry.api.test_views import SOME_ID

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def base(tmp_path: Path, settings) -> Checkpoint:
    settings.BLAZR_WATCHED_DIRECTORIES = [str(tmp_path / "adapters")]
    (tmp_path / "tiny").mkdir()
    TinyCheckpoint(tmp_path / "tiny")
    return checkpoint_register(path=tmp_path / "tiny", served_model_name="tiny")


def register(client: Client, url: str, **body: object) -> Any:
    return client.post(url, json.dumps(body), content_type="application/json")


def test_an_adapter_over_http(
    browser: Client,
    base: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks,
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(live, "forget_adapter_sync", forgotten.append)
    path = f"/registry/checkpoints/{base.pk}/adapters"
    assert browser.get(path).json() == []
    place = write_adapter(tmp_path / "adapters" / "sql", 1)
    response = register(browser, path, path=str(place))
    assert response.status_code == 201, response.content
    shown = response.json()
    assert (shown["name"], shown["model"], shown["rank"], shown["owner"]) == ("sql", "tiny:sql", 4, "vera")
    assert browser.get(path).json() == [shown]
    page = browser.get(f"/models/{base.pk}/?tab=adapters").content.decode()
    assert "tiny:sql" in page and str(place) in page and f'data-remove="{shown["id"]}"' in page
    with django_capture_on_commit_callbacks(execute=True):
        assert send(browser, "DELETE", f"{path}/{shown['id']}").status_code == 204
    assert forgotten == [shown["id"]]
    assert error_of(send(browser, "DELETE", f"{path}/{shown['id']}"), 404)["param"] == "adapter"
    assert (place / "adapter_config.json").exists()


def test_refusals_name_what_is_wrong(browser: Client, base: Checkpoint, tmp_path: Path) -> None:
    path = f"/registry/checkpoints/{base.pk}/adapters"
    place = write_adapter(tmp_path / "adapters" / "sql", 1)
    assert error_of(send(browser, "POST", path), 400)["param"] == "path"
    assert error_of(register(browser, path, path=str(place), name="a:b"), 400)["param"] == "name"
    assert error_of(register(browser, path, path="/etc"), 403)["param"] == "path"
    (place / "adapter_config.json").unlink()
    error = error_of(register(browser, path, path=str(place)), 422)
    assert "has no adapter_config.json" in error["message"]
    assert error_of(register(browser, f"/registry/checkpoints/{SOME_ID}/adapters", path=str(place)), 404)
    assert not Adapter.objects.exists()


def test_another_model_does_not_remove_it(browser: Client, base: Checkpoint, hybrid: Path, tmp_path: Path) -> None:
    place = write_adapter(tmp_path / "adapters" / "sql", 1)
    path = f"/registry/checkpoints/{base.pk}/adapters"
    made = register(browser, path, path=str(place)).json()
    other = checkpoint_register(path=hybrid, served_model_name="other")
    assert error_of(send(browser, "DELETE", f"/registry/checkpoints/{other.pk}/adapters/{made['id']}"), 404)
    assert Adapter.objects.count() == 1


def test_who_may_only_look_gets_no_form(base: Checkpoint) -> None:
    client = Client()
    client.force_login(account("walter", "viewer"))
    page = client.get(f"/models/{base.pk}/?tab=adapters").content.decode()
    assert "None is registered." in page and "add-adapter" not in page


def test_an_adapter_is_promoted_and_then_not_removed(browser: Client, base: Checkpoint, tmp_path: Path) -> None:
    path = f"/registry/checkpoints/{base.pk}/adapters"
    made = register(browser, path, path=str(write_adapter(tmp_path / "adapters" / "sql", 1))).json()
    url = f"/registry/checkpoints/{base.pk}/promote"
    revision = register(browser, url, alias="chat", adapter=made["id"])
    assert revision.status_code == 201 and revision.json()["adapter_name"] == "sql", revision.content
    page = browser.get(f"/models/{base.pk}/?tab=adapters").content.decode()
    assert f'data-adapter="{made["id"]}"' in page and ">chat</span>" in page
    assert "'chat' means" in error_of(send(browser, "DELETE", f"{path}/{made['id']}"), 409)["message"]
    served = served_model_read("chat")
    assert (served.name, served.adapter) == ("tiny:sql", made["id"])
    assert error_of(register(browser, url, alias="chat", adapter=SOME_ID), 404)["param"] == "adapter"
    Adapter.objects.all().delete()
    with pytest.raises(UnknownModel, match="alias 'chat' means the adapter 'tiny:sql', which was removed"):
        served_model_read("chat")


def test_an_xlora_is_registered_like_any_adapter(browser: Client, base: Checkpoint, tmp_path: Path) -> None:
    path = f"/registry/checkpoints/{base.pk}/adapters"
    place = write_xlora(tmp_path / "adapters" / "mix", 1, is_old=True)
    made = register(browser, path, path=str(place))
    assert made.status_code == 201, made.content
    assert (made.json()["kind"], made.json()["model"]) == ("xlora", "tiny:mix")
    assert "X-LoRA</span>" in browser.get(f"/models/{base.pk}/?tab=adapters").content.decode()
    (place / "adapters" / "adapter_1" / "adapter_model.safetensors").unlink()
    error = error_of(register(browser, path, path=str(place), name="again"), 422)
    assert "has no adapter_model.safetensors" in error["message"]


def test_an_adapter_is_loaded_ahead_shown_and_unloaded(
    browser: Client, base: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/registry/checkpoints/{base.pk}/adapters"
    page = f"/models/{base.pk}/?tab=adapters"
    made = register(browser, path, path=str(write_adapter(tmp_path / "adapters" / "sql", 1))).json()
    assert (made["pinned"], made["resident"]) == (False, None)  # nobody knows without Redis
    assert ">unknown</span>" in browser.get(page).content.decode()
    seen: list[ResidentAdapter] = []
    monkeypatch.setattr(live, "look", lambda: live.Live({"a": ModelState("a", adapters=tuple(seen))}, ()))
    monkeypatch.setattr(live, "load_adapter", lambda *ids: next(iter(seen), None))
    monkeypatch.setattr(live, "unload_adapter", lambda *ids: next(iter(seen), None))
    text = browser.get(page).content.decode()
    assert 'data-memory="load"' in text and 'data-memory="unload"' not in text
    waits = send(browser, "POST", f"{path}/{made['id']}/load")
    assert (waits.status_code, waits.json()["pinned"], waits.json()["resident"]) == (202, True, False), waits.content
    text = browser.get(page).content.decode()
    assert "comes with its base" in text and 'data-memory="unload"' in text and 'data-memory="load"' not in text
    ready = ModelState(str(base.pk), status="ready")  # and the adapter has found no place
    with monkeypatch.context() as patched:
        patched.setattr(live, "look", lambda: live.Live({str(base.pk): ready}, ()))
        text = browser.get(page).content.decode()
        assert "comes with its base" not in text and 'data-memory="load"' in text
    seen.append(ResidentAdapter(made["id"], 3 << 20, num_requests=2, last_used_at=1.5, is_pinned=True))
    loaded = send(browser, "POST", f"{path}/{made['id']}/load")
    assert loaded.status_code == 200
    assert browser.get(path).json() == [loaded.json()]
    found = {name: loaded.json()[name] for name in ("resident", "memory_bytes", "num_requests", "last_used_at")}
    assert found == {
        "resident": True, "memory_bytes": 3 << 20, "num_requests": 2, "last_used_at": "1970-01-01T00:00:01.500000Z"
    }  # fmt: skip
    text = browser.get(page).content.decode()
    assert "3.0 MiB" in text and "2 requests now" in text and ">pinned</span>" in text
    left = send(browser, "POST", f"{path}/{made['id']}/unload")
    assert (left.status_code, left.json()["pinned"], left.json()["num_requests"]) == (202, False, 2)
    text = browser.get(page).content.decode()
    assert ">Pin</button>" in text and ">Unload</button>" in text
    seen.clear()
    gone = send(browser, "POST", f"{path}/{made['id']}/unload")
    assert (gone.status_code, gone.json()["resident"], gone.json()["last_used_at"]) == (200, False, None)
    for word in ("load", "unload"):
        assert error_of(send(browser, "POST", f"{path}/{SOME_ID}/{word}"), 404)["param"] == "adapter"


def test_who_may_only_look_loads_nothing(base: Checkpoint, tmp_path: Path) -> None:
    row = make_adapter(base, "sql")
    client = Client()
    client.force_login(account("mia", "member"))
    assert "data-memory" not in client.get(f"/models/{base.pk}/?tab=adapters").content.decode()
    for word in ("load", "unload"):
        assert send(client, "POST", f"/registry/checkpoints/{base.pk}/adapters/{row.pk}/{word}").status_code == 403
