"""The registry's API on the wire: who may call, shapes, errors in OpenAI's form."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from models_registry import services
from models_registry.api.serializers import UploadSerializer
from models_registry.api.urls import urlpatterns
from models_registry.models import Checkpoint, Upload
from models_registry.uploads import upload_finish
from tests.models_registry.detection.builders import UNKNOWN_TYPE, llama_shapes, write_checkpoint, write_json

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

SOME_ID = "00000000-0000-4000-8000-000000000000"


def all_paths() -> list[str]:
    paths = [str(pattern.pattern) for pattern in urlpatterns]
    names = (
        "checkpoint_id", "upload_id", "quantisation_id", "measurement_id", "run_id", "passport_id", "pull_id",
        "adapter_id",
    )  # fmt: skip
    for name, value in {**dict.fromkeys(names, SOME_ID), "number": "0", "fact": "top_k", "alias": "chat"}.items():
        paths = [path.replace(f"<uuid:{name}>", value).replace(f"<int:{name}>", value) for path in paths]
        paths = [path.replace(f"<str:{name}>", value) for path in paths]
    return [f"/registry/{path}" for path in paths]


def post(client: Client, path: str):
    """Without a body, as fetch sends it."""
    return client.post(path, content_type="application/json")


def error_of(response) -> dict:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_nobody_but_staff_gets_in(method: str) -> None:
    other = Client()
    other.force_login(User.objects.create_user("reader", password="x"))
    for client in (Client(), other):
        for path in all_paths():
            response = getattr(client, method)(path)
            assert response.status_code in (401, 403), path
            error_of(response)


def test_a_key_is_refused_with_the_way_to_sign_in() -> None:
    response = Client().get("/registry/overview", headers={"Authorization": "Bearer blazr_whatever"})
    assert response.status_code == 401
    assert error_of(response)["message"] == "The registry takes accounts and no API keys; sign in at /login/."


def test_unsafe_methods_need_the_csrf_token(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    del browser.defaults["HTTP_X_CSRFTOKEN"]
    for method, path in (
        ("delete", f"/registry/checkpoints/{row.pk}"),
        ("post", f"/registry/checkpoints/{row.pk}/load"),
        ("post", "/registry/uploads"),
        ("put", f"/registry/uploads/{SOME_ID}/files/0?offset=0"),
    ):
        response = getattr(browser, method)(path, content_type="application/json")
        assert response.status_code == 403, path
        assert "CSRF" in error_of(response)["message"]
    assert Checkpoint.objects.exists()


def test_overview_without_redis_says_so(browser: Client, hybrid: Path) -> None:
    services.checkpoint_register(path=hybrid)
    body = browser.get("/registry/overview").json()
    assert [row["served_model_name"] for row in body["checkpoints"]] == ["tiny-hybrid"]
    assert body["checkpoints"][0]["live"]["status"] == "unknown"
    assert "can't be reached" in body["notice"]
    assert body["jobs"]["queued"] == 0


def test_live_state_comes_from_the_workers(browser: Client, hybrid: Path, redis_urls_in_settings) -> None:
    import redis

    from inference.transport import keys as redis_keys
    from inference.values.states import ResidentModel, WorkerState

    row = services.checkpoint_register(path=hybrid)
    model = ResidentModel(str(row.pk), "loading", progress=0.25, stage="reading weights")
    state = WorkerState("w1", heartbeat_at=time.time(), memory_budget_bytes=100, models=(model,))
    client = redis.Redis.from_url(redis_urls_in_settings.client)
    client.set(redis_keys.worker("w1"), state.to_json())
    client.zadd(redis_keys.WORKERS, {"w1": time.time() + 600})
    body = browser.get("/registry/overview").json()
    live = body["checkpoints"][0]["live"]
    assert (live["status"], live["progress"], live["stage"]) == ("loading", 0.25, "reading weights")
    assert (body["workers"][0]["worker_id"], body["workers"][0]["models"]) == ("w1", ["tiny-hybrid"])
    assert body["notice"] == ""
    assert post(browser, f"/registry/checkpoints/{row.pk}/load").status_code == 202
    assert client.llen(redis_keys.DEFAULT_QUEUE) == 1
    assert post(browser, f"/registry/checkpoints/{row.pk}/unload").status_code == 202
    assert client.xlen(redis_keys.CONTROL_STREAM) == 1
    client.close()


def test_detail_override_settings_rename_delete(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    base = f"/registry/checkpoints/{row.pk}"
    detail = browser.get(base).json()
    assert [layer["kind"] for layer in detail["description"]["layers"]] == ["mamba2", "mla+moe", "attention+mlp"]

    def send(method: str, path: str, body: object = None):
        return getattr(browser, method)(path, json.dumps(body), content_type="application/json")

    answer = send("post", f"{base}/overrides", {"fact": "max_position_embeddings", "value": 64}).json()
    assert answer["max_position_embeddings"] == 64
    assert (answer["overrides"][0]["author_name"], answer["overrides"][0]["cleared_at"]) == ("vera", None)
    assert browser.delete(f"{base}/overrides/max_position_embeddings").json()["max_position_embeddings"] == 128
    wrong = send("post", f"{base}/overrides", {"fact": "nonsense", "value": 64})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "nonsense")
    assert send("patch", f"{base}/settings", {"settings": {"dtype": "float32"}}).json()["settings"] == {
        "dtype": "float32"
    }
    wrong = send("patch", f"{base}/settings", {"settings": {"dtype": "float8"}})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "dtype")
    assert send("patch", base, {"served_model_name": "nebula"}).json()["served_model_name"] == "nebula"
    wrong = send("patch", base, {"served_model_name": "../nebula"})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "served_model_name")
    assert post(browser, f"{base}/refresh").status_code == 200
    (hybrid / "model.safetensors").unlink()
    assert post(browser, f"{base}/refresh").status_code == 422
    assert browser.get(base).json()["state"] == "refused"
    assert browser.delete(base).status_code == 204
    assert browser.get(base).status_code == 404
    assert browser.delete(base).status_code == 404


def test_tensors_are_searched_and_paged(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    path = f"/registry/checkpoints/{row.pk}/tensors"
    everything = browser.get(path, {"limit": 500}).json()
    names = [tensor["name"] for tensor in everything["tensors"]]
    assert everything["count"] == len(names) == row.inspection["tensors"].__len__()
    page = browser.get(path, {"limit": 3, "offset": 2}).json()
    assert [tensor["name"] for tensor in page["tensors"]] == names[2:5]
    found = browser.get(path, {"search": "layers.1 W_DKV f32 8x16"}).json()["tensors"]
    assert found == [
        {"name": "layers.1.self_attn.w_dkv.weight", "dtype": "F32", "shape": [8, 16], "size_bytes": 512,
         "file": "model.safetensors"}
    ]  # fmt: skip
    for name, value in (("limit", "0"), ("limit", "501"), ("offset", "-1"), ("offset", "x"), ("offset", "9" * 40)):
        wrong = browser.get(path, {name: value})
        assert (wrong.status_code, error_of(wrong)["param"]) == (400, name)


# --- uploads -----------------------------------------------------------------------------------


def declare(client: Client, directory: Path, **members: object):
    files = [{"name": file.name, "size_bytes": file.stat().st_size} for file in sorted(directory.iterdir())]
    return client.post("/registry/uploads", json.dumps({"files": files, **members}), content_type="application/json")


def put(client: Client, upload: dict, number: int, offset: int, content: bytes):
    path = f"/registry/uploads/{upload['id']}/files/{number}?offset={offset}"
    return client.put(path, content, content_type="application/octet-stream")


@pytest.mark.django_db(transaction=True)
def test_an_upload_over_http(browser: Client, hybrid: Path) -> None:
    upload = declare(browser, hybrid, label="My Nebula!").json()
    assert (upload["state"], upload["served_model_name"]) == ("receiving", "My-Nebula")
    for file in upload["files"]:
        content = (hybrid / file["name"]).read_bytes()
        half = len(content) // 2
        assert put(browser, upload, file["number"], 0, content[:half]).json()["received_bytes"] == half
        late = put(browser, upload, file["number"], 0, content)
        assert (late.status_code, error_of(late)["param"]) == (409, "offset")
        offsets = browser.get(f"/registry/uploads/{upload['id']}").json()["files"]
        assert offsets[file["number"]]["received_bytes"] == half
        assert put(browser, upload, file["number"], half, content[half:]).status_code == 200
    answer = post(browser, f"/registry/uploads/{upload['id']}/finish")
    assert answer.status_code == 202
    deadline = time.monotonic() + 60
    while (state := browser.get(f"/registry/uploads/{upload['id']}").json())["state"] in ("receiving", "checking"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (state["state"], state["reason"]) == ("done", "")
    assert browser.get(f"/models/{state['checkpoint']}/").status_code == 200
    assert browser.delete(f"/registry/checkpoints/{state['checkpoint']}").status_code == 204


def test_refused_declarations_are_4xx_and_store_nothing(browser: Client, hybrid: Path, settings) -> None:
    write_json(hybrid / "pytorch_model.bin", {})
    pickle = declare(browser, hybrid, label="a")
    assert (pickle.status_code, error_of(pickle)["code"]) == (422, "unsupported_format")
    (hybrid / "pytorch_model.bin").unlink()
    named = declare(browser, hybrid, served_model_name="../a")
    assert (named.status_code, error_of(named)["param"]) == (400, "served_model_name")
    settings.BLAZR_MAX_UPLOAD_BYTES = 1000
    assert declare(browser, hybrid, label="a").status_code == 413
    for body in (
        "[]",
        "{",
        "{}",
        '{"files": []}',
        '{"files": 3}',
        '{"files": [{"name": "a"}]}',
        '{"files": [{"name": 3, "size_bytes": NaN}]}',
    ):
        wrong = browser.post("/registry/uploads", body, content_type="application/json")
        assert wrong.status_code == 400, body
        error_of(wrong)
    assert not Upload.objects.exists()


def test_facts_set_with_an_upload_count_and_are_its_senders(browser: Client, staff: User, tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path / "cousin", llama_shapes(), UNKNOWN_TYPE)

    def uploaded(**members: object) -> dict:
        upload = declare(browser, place, label="cousin", **members).json()
        for file in upload["files"]:
            put(browser, upload, file["number"], 0, (place / file["name"]).read_bytes())
        return UploadSerializer(upload_finish(upload_id=upload["id"], wait=True)).data

    assert uploaded()["state"] == "refused"
    done = uploaded(overrides={"model_type": "llama", "eps": 1e-6})
    assert (done["state"], done["reason"]) == ("done", "")
    detail = browser.get(f"/registry/checkpoints/{done['checkpoint']}").json()
    set_by = {row["fact"]: (row["value"], row["author_name"]) for row in detail["overrides"]}
    assert set_by == {"model_type": ("llama", "vera"), "norm.eps": (1e-6, "vera")}
    again = post(browser, f"/registry/checkpoints/{done['checkpoint']}/refresh")
    assert again.status_code == 200, "the facts stay in force"


@pytest.mark.parametrize("overrides", [{"colour": 1}, {"model_type": "brandnew"}, {"eps": "x"}, [], "model_type=llama"])
def test_facts_that_cannot_be_set_refuse_the_upload_before_its_bytes(browser: Client, hybrid: Path, overrides) -> None:
    wrong = declare(browser, hybrid, label="a", overrides=overrides)
    assert (wrong.status_code, Upload.objects.exists()) == (400, False)
    assert error_of(wrong)["message"]


def test_a_full_disk_is_507(browser: Client, hybrid: Path, monkeypatch) -> None:
    import errno
    import os

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    upload = declare(browser, hybrid, label="a").json()
    monkeypatch.setattr(os, "pwrite", full)
    answer = put(browser, upload, 0, 0, b"{")
    assert (answer.status_code, error_of(answer)["code"]) == (507, "insufficient_storage")
    assert browser.get(f"/registry/uploads/{upload['id']}").json()["state"] == "refused"


def test_cancelling_over_http(browser: Client, hybrid: Path) -> None:
    upload = declare(browser, hybrid, label="a").json()
    assert browser.delete(f"/registry/uploads/{upload['id']}").json()["state"] == "cancelled"
    assert put(browser, upload, 0, 0, b"{").status_code == 409
    assert browser.get(f"/registry/uploads/{SOME_ID}").status_code == 404


def test_every_route_is_in_this_tables_reach() -> None:
    """The access test above builds its paths from the resolver; a route elsewhere would escape it."""
    routes = [str(p.pattern) for p in get_resolver("models_registry.urls").url_patterns]
    assert routes == [
        "login/", "logout/", "models/", "models/upload/", "models/path/", "models/compare/",
        "models/<uuid:checkpoint_id>/", "runs/", "runs/<uuid:run_id>/", "registry/",
    ]  # fmt: skip
