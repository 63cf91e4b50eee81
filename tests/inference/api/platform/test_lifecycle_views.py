"""Load, unload, pin, status, fit; running requests. A real model manager answers behind the scripted worker's name."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest
import redis

from inference.access.api_keys import api_key_create
from inference.transport import keys as redis_keys
from inference.transport import questions
from inference.transport.control import CancelledRequests, ControlReader
from inference.values.states import Departure, WorkerState
from inference.worker.model_manager import ModelManager
from inference.worker.questions import Questions
from models_registry.models import Checkpoint
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.test_base import is_error
from tests.inference.worker.fakes import Client, FakeLLM, FakePlans, FakePresence, message

SIZES = {
    "weights_bytes": 10, "states_bytes": 4, "cache_bytes": 2, "slots_bytes": 1, "snapshots_bytes": 1,
    "full_states_bytes": 4, "bytes_per_token": 1, "bytes_per_sequence": 2, "max_model_len": 8,
    "full_sequences": 4,
}  # fmt: skip


class Worker:
    """Its engine waits until it may go on."""

    def __init__(self, url: str) -> None:
        self.gate = threading.Event()
        self.plans = FakePlans(make=lambda _: FakeLLM(gate=self.gate))
        self.client = Client()
        self.manager = ModelManager(
            plan=self._plan, presence=FakePresence(), budget_bytes=25, on_dead=lambda error: None
        )
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.pins: list[tuple[str, bool]] = []
        self._redis = redis.Redis.from_url(url, protocol=2, socket_timeout=10)
        self.questions = Questions(redis.Redis.from_url(url, protocol=2), "scripted", self.manager)
        self._control = ControlReader(
            self._redis,
            {
                "query": self.questions.take,
                "cancel": self.manager.cancel,
                "unload": self.unloads.append,
                "pin": lambda checkpoint_id: self.pins.append((checkpoint_id, True)),
                "unpin": lambda checkpoint_id: self.pins.append((checkpoint_id, False)),
                "jobs": lambda subject: None,
            },
            CancelledRequests(),
        )
        self._control.start()

    def _plan(self, checkpoint_id: str):
        from dataclasses import replace

        return replace(self.plans(checkpoint_id), sizes=SIZES)

    def send(self, request_id: str, model: str, owner: str) -> None:
        wanted = message(request_id, model=model, owner=owner)
        self.manager.submit(wanted, self.client.on_events)

    def stop(self) -> None:
        self.gate.set()
        self._control.stop()
        self.questions.stop()
        self.manager.drain(0)


@pytest.fixture
def manager(redis_server, worker) -> Iterator[Worker]:
    found = Worker(redis_server.client)
    yield found
    found.stop()


@pytest.fixture
def http(live_url, worker, redis_server, monkeypatch):
    monkeypatch.setattr(questions, "REPLY_TIMEOUT_S", 60.0)
    # Workers of tests before this one, which won't answer, share the Redis until their heartbeats lapse.
    with redis.Redis.from_url(redis_server.client) as client:
        client.delete(redis_keys.WORKERS)
    with httpx.Client(base_url=live_url, timeout=60) as found:
        wait_for(lambda: found.get("/health").json()["loaded_models"] == ["tiny"])
        yield found


def test_a_model_that_is_resident(document, http, worker, checkpoint):
    response = http.get("/v1/models/tiny/status")
    documented_answer(document, "/v1/models/{model_id}/status", "get", response)
    found = response.json()
    assert (found["status"], found["workers"], found["pinned"]) == ("ready", ["scripted"], False)
    for action in ("load", "unload"):
        response = http.post(f"/v1/models/tiny/{action}")
        assert response.status_code == 202
        documented_answer(document, f"/v1/models/{{model_id}}/{action}", "post", response)
    is_error(http.get("/v1/models/missing/status"), 404)
    is_error(http.get("/v1/models/tiny/load"), 405)


def test_orders_reach_the_workers(http, manager, checkpoint):
    http.post("/v1/models/tiny/unload")
    wait_for(lambda: manager.unloads == [str(checkpoint.pk)])
    assert http.post("/v1/models/tiny/pin", json={}).json()["pinned"] is True
    wait_for(lambda: manager.pins == [(str(checkpoint.pk), True)])
    assert Checkpoint.objects.get().settings == {"pinned": "yes"}
    assert http.post("/v1/models/tiny/pin", json={"pinned": False}).json()["pinned"] is False
    wait_for(lambda: manager.pins[1:] == [(str(checkpoint.pk), False)])
    assert Checkpoint.objects.get().settings == {}
    assert is_error(http.post("/v1/models/tiny/pin", json={"pinned": 1}), 400)["param"] == "pinned"


def test_whether_a_model_fits(document, http, manager):
    response = http.get("/v1/models/tiny/fit")
    documented_answer(document, "/v1/models/{model_id}/fit", "get", response)
    found = response.json()
    assert found["fits"] is True
    (worker,) = found["workers"]
    assert (worker["verdict"], worker["needed_bytes"], worker["budget_bytes"]) == ("fits", 10, 25)
    assert worker["full_sequences"] == 4
    manager.plans.needed = 26
    found = http.get("/v1/models/tiny/fit").json()
    assert (found["fits"], found["workers"][0]["verdict"]) == (False, "too_large")
    assert manager.plans.loads == []


def test_a_key_for_some_models_gets_no_names_of_others(http, manager):
    for name in ("b", "c"):
        manager.manager.ensure(name)
        wait_for(lambda name=name: name in manager.plans.llms)
    (found,) = http.get("/v1/models/tiny/fit").json()["workers"]
    assert found["evicts"] == [{"name": "b", "memory_bytes": 10}]
    for models, shown in ((["tiny"], []), (["tiny", "b"], found["evicts"])):
        _, key = api_key_create(name=models[-1], models=models)
        headers = {"Authorization": f"Bearer {key}"}
        (own,) = http.get("/v1/models/tiny/fit", headers=headers).json()["workers"]
        assert own == found | {"evicts": shown}


def test_a_key_for_some_models_reads_no_names_of_others_in_departures(http, redis_server, checkpoint):
    gone = Departure(str(checkpoint.pk), "needed 10 bytes", evicted_for="b")
    with redis.Redis.from_url(redis_server.client) as client:
        client.set(redis_keys.worker("other"), WorkerState("other", departures=(gone,)).to_json(), ex=60)
        client.zadd(redis_keys.WORKERS, {"other": client.time()[0] + 60})
    for models, who in ((["tiny"], "another model"), (["tiny", "b"], "b"), ([], "b")):
        _, key = api_key_create(name=who, models=models)
        headers = {"Authorization": f"Bearer {key}"}
        (found,) = http.get("/v1/models/tiny/status", headers=headers).json()["departures"]
        assert found["reason"] == f"{who} needed 10 bytes"


def test_requests_are_listed_and_cancelled(document, http_as_admin, manager, checkpoint):
    model = str(checkpoint.pk)
    manager.send("cmpl-aa", model, "local")
    manager.send("cmpl-bb-0", model, "key:7")
    manager.send("cmpl-bb-1", model, "key:7")
    response = http_as_admin.get("/v1/requests")
    documented_answer(document, "/v1/requests", "get", response)
    first, second = response.json()["data"]
    assert (first["id"], first["model"], first["owner"], first["prompts"]) == ("cmpl-aa", "tiny", "local", 1)
    assert (second["id"], second["prompts"], second["workers"]) == ("cmpl-bb", 2, ["scripted"])
    cancelled = http_as_admin.post("/v1/requests/cmpl-bb/cancel")
    documented_answer(document, "/v1/requests/{request_id}/cancel", "post", cancelled)
    manager.client.wait("cmpl-bb-0", "cmpl-bb-1")
    assert "cancelled" in manager.client.error("cmpl-bb-1").message
    assert [item["id"] for item in http_as_admin.get("/v1/requests").json()["data"]] == ["cmpl-aa"]
    is_error(http_as_admin.post("/v1/requests/cmpl-bb/cancel"), 404, "request_not_found")


@pytest.mark.parametrize(("request_id", "instead"), [("job-aa-1", "cancel the job"), ("batch_req_aa-1", "the batch")])
def test_what_would_be_tried_again_is_cancelled_elsewhere(http, manager, checkpoint, request_id, instead):
    manager.send(request_id, str(checkpoint.pk), "local")
    (found,) = http.get("/v1/requests").json()["data"]
    error = is_error(http.post(f"/v1/requests/{found['id']}/cancel"), 409)
    assert instead in error["message"]
    assert manager.manager.cancel(request_id)  # it still runs


def test_a_key_sees_and_cancels_its_own(http, manager, checkpoint, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    row, key = api_key_create(name="own")
    _, operator = api_key_create(name="operator", scopes=("admin",))
    headers = {"Authorization": f"Bearer {key}"}
    manager.send("cmpl-aa", str(checkpoint.pk), f"key:{row.pk}")
    manager.send("cmpl-bb", str(checkpoint.pk), "key:0")

    def seen(headers: dict[str, str]) -> list[str]:
        return [item["id"] for item in http.get("/v1/requests", headers=headers).json()["data"]]

    assert seen(headers) == ["cmpl-aa"]
    assert seen({"Authorization": f"Bearer {operator}"}) == ["cmpl-aa", "cmpl-bb"]
    is_error(http.post("/v1/requests/cmpl-bb/cancel", headers=headers), 404)
    assert http.post("/v1/requests/cmpl-aa/cancel", headers=headers).status_code == 200
    is_error(http.post("/v1/models/tiny/unload", headers=headers), 403)
    assert http.get("/v1/models/tiny/status", headers=headers).status_code == 200
