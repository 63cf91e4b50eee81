"""LoRA adapters of a running server: registered by path, named by real clients, many at once, removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.values.sampling_params import SamplingParams
from models_registry.detection.inspection import inspect_checkpoint
from tests.inference.llm.adapter_writing import write_adapter, write_xlora
from tests.inference.llm.harness import Checkpoint, ids_of
from tests.live.conftest import DEVICE, LiveServer, wait_until

pytestmark = pytest.mark.live

PROMPT = "the quick brown fox"
NUM_TOKENS = 24
NAMES = ("a0", "a1", "a2")
ACCOUNT = """
from django.contrib.auth.models import User
User.objects.create_superuser("vera", password="rotation-curve")
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A base with three adapters below its directory, which the settings name."""
    directory = tmp_path_factory.mktemp("bases") / "tiny"
    directory.mkdir()
    for number, name in enumerate(NAMES):
        write_adapter(directory / "adapters" / name, number)
    return Checkpoint(directory)


def run_alone(checkpoint: Checkpoint, paths: dict[str, Path]) -> dict[str, list[int]]:
    """What each adapter and the base answer in this process, one by one."""
    options = LLMOptions(dtype="float32", max_num_seqs=4, cache_bytes=1 << 22)
    base = inspect_checkpoint(checkpoint.directory)
    llm = LLM.load(base.spec, base.tokenizer, base.weight_paths, options, adapters=paths)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    try:
        found = {f"tiny:{name}": ids_of(list(llm.events(PROMPT, params, adapter=name))) for name in paths}
        return found | {"tiny": ids_of(list(llm.events(PROMPT, params)))}
    finally:
        llm.close()


@pytest.fixture(scope="module")
def answers(checkpoint: Checkpoint) -> dict[str, list[int]]:
    return run_alone(checkpoint, {name: checkpoint.directory / "adapters" / name for name in NAMES})


@pytest.fixture(scope="module")
def adapted(
    django_db_setup: None, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    place = tmp_path_factory.mktemp("adapted") / "data"
    server = LiveServer(place, *DEVICE, "--dtype", "float32", "--model", str(checkpoint.directory))
    try:
        server.wait_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="module")
def session(adapted: LiveServer) -> Iterator[httpx.Client]:
    """A signed-in administrator."""
    adapted.manage(ACCOUNT)
    with httpx.Client(base_url=adapted.url, timeout=60) as client:
        form = client.get("/login/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)[1]
        values = {"username": "vera", "password": "rotation-curve", "csrfmiddlewaretoken": token}
        signed_in = client.post("/login/", data=values, headers={"Referer": f"{adapted.url}/login/"})
        assert signed_in.status_code == 302, signed_in.text
        client.headers.update({"X-CSRFToken": client.cookies["csrftoken"], "Referer": adapted.url})
        yield client


def complete(server: LiveServer, model: str) -> list[int]:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    extra: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0, extra_body=extra
    )
    assert answer.model == model
    return list(answer.choices[0].token_ids)


def unload(server: LiveServer, session: httpx.Client) -> None:
    """Unload the base."""
    answer = session.post(f"/registry/checkpoints/{server.checkpoint_id('tiny')}/unload")
    assert answer.status_code in (200, 202), answer.text
    wait_until(lambda: not server.workers()[0].models, what="the unload of the base")


def test_three_adapters_in_one_batch(
    adapted: LiveServer, session: httpx.Client, checkpoint: Checkpoint, answers: dict[str, list[int]]
) -> None:
    assert len({tuple(found) for found in answers.values()}) == 4
    assert complete(adapted, "tiny") == answers["tiny"]
    path = f"/registry/checkpoints/{adapted.checkpoint_id('tiny')}"
    for name in NAMES:
        made = session.post(f"{path}/adapters", json={"path": str(checkpoint.directory / "adapters" / name)})
        assert made.status_code == 201, made.text
        assert made.json()["model"] == f"tiny:{name}"
    unload(adapted, session)  # a load makes room for the adapters that are registered then
    client = openai.OpenAI(base_url=f"{adapted.url}/v1", api_key="none")
    assert {f"tiny:{name}" for name in NAMES} < {model.id for model in client.models.list()}
    assert client.models.retrieve("tiny:a1").id == "tiny:a1"
    asked = list(answers) * 4
    with ThreadPoolExecutor(len(asked)) as threads:
        found = list(threads.map(lambda model: complete(adapted, model), asked))
    assert found == [answers[model] for model in asked]

    def num_loads() -> int:
        (worker,) = adapted.workers()
        (model,) = worker.models
        return model.stats.get("adapters", {}).get("num_loads", 0)

    wait_until(lambda: num_loads() == 3, 60, "each adapter's one load")


def test_an_unknown_one_is_refused_and_a_removed_one_too(
    adapted: LiveServer, session: httpx.Client, answers: dict[str, list[int]]
) -> None:
    with pytest.raises(openai.NotFoundError, match="'tiny:a9' does not exist") as caught:
        complete(adapted, "tiny:a9")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    path = f"/registry/checkpoints/{adapted.checkpoint_id('tiny')}/adapters"
    rows = {row["name"]: row for row in session.get(path).json()}
    assert session.delete(f"{path}/{rows['a1']['id']}").status_code == 204
    with pytest.raises(openai.NotFoundError):
        complete(adapted, "tiny:a1")
    known = session.post(path, json={"path": rows["a0"]["path"], "name": "a1"})  # the same name, other files
    assert known.status_code == 201, known.text
    wait_until(lambda: complete(adapted, "tiny:a1") == answers["tiny:a0"], what="the other adapter")
    assert complete(adapted, "tiny:a2") == answers["tiny:a2"]


def test_clients_of_ollama_name_adapters_as_tags(adapted: LiveServer) -> None:
    names = [model["name"] for model in httpx.get(f"{adapted.url}/api/tags", timeout=30).json()["models"]]
    assert "tiny:a2" in names
    body = {"model": "tiny:a2", "prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 4}}
    answer = httpx.post(f"{adapted.url}/api/generate", json=body, timeout=60)
    assert (answer.status_code, answer.json()["model"]) == (200, "tiny:a2"), answer.text


def test_states_and_jobs_go_through_the_adapter(adapted: LiveServer, answers: dict[str, list[int]]) -> None:
    with httpx.Client(base_url=adapted.url, timeout=60) as client:
        saved = client.post("/v1/states", json={"name": "fox", "model": "tiny:a2", "prompt": "the quick brown"})
        assert saved.status_code == 200, saved.text
        body = {"prompt": " fox", "state": "fox", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        body["return_token_ids"] = True
        after = client.post("/v1/completions", json={"model": "tiny:a2", **body})
        assert after.status_code == 200, after.text
        assert after.json()["choices"][0]["token_ids"] == answers["tiny:a2"]
        assert client.post("/v1/completions", json={"model": "tiny", **body}).status_code == 400
        del body["state"]
        job = {"endpoint": "completion", "body": {"model": "tiny:a0", **body, "prompt": PROMPT}}
        made = client.post("/api/jobs", json=job)
        assert made.status_code in (200, 201, 202), made.text
        place = f"/api/jobs/{made.json()['data'][0]['id']}"
        wait_until(lambda: client.get(place).json()["state"] == "succeeded", what="the job")
        assert client.get(f"{place}/result").json()["choices"][0]["token_ids"] == answers["tiny:a0"]


def test_changed_files_are_refused_in_words(
    adapted: LiveServer, session: httpx.Client, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    place = write_adapter(checkpoint.directory / "adapters" / "new", 7)
    path = f"/registry/checkpoints/{adapted.checkpoint_id('tiny')}/adapters"
    assert session.post(path, json={"path": str(place)}).status_code == 201
    write_adapter(place, 8)
    with pytest.raises(openai.APIStatusError, match="files of the adapter new have changed"):
        complete(adapted, "tiny:new")


def test_adapters_are_loaded_ahead_shown_unloaded_and_evicted(
    adapted: LiveServer, session: httpx.Client, checkpoint: Checkpoint, answers: dict[str, list[int]]
) -> None:
    path = f"/registry/checkpoints/{adapted.checkpoint_id('tiny')}"
    small = session.patch(f"{path}/settings", json={"settings": {"max_adapters": 2}})
    assert small.status_code == 200, small.text
    places = {name: write_adapter(checkpoint.directory / "few" / name, number) for number, name in enumerate("pqr", 20)}
    wanted = run_alone(checkpoint, places)
    keys = {}
    for name, place in places.items():
        made = session.post(f"{path}/adapters", json={"path": str(place)})
        assert made.status_code == 201, made.text
        keys[name] = made.json()["id"]
    unload(adapted, session)  # its next load has two places

    def rows() -> dict[str, Any]:
        return {row["name"]: row for row in session.get(f"{path}/adapters").json() if row["resident"]}

    def order(name: str, word: str) -> httpx.Response:
        return session.post(f"{path}/adapters/{keys[name]}/{word}")

    waits = order("p", "load")
    assert (waits.status_code, waits.json()["resident"], waits.json()["pinned"]) == (202, False, True), waits.text
    assert complete(adapted, "tiny") == answers["tiny"]
    wait_until(lambda: rows().keys() == {"p"}, what="the adapter that comes with its base")
    shown = rows()["p"]
    assert shown["memory_bytes"] > 0 and shown["num_requests"] == 0 and shown["last_used_at"]
    for name in ("q", "r", "p"):  # q leaves for r, p stays
        assert complete(adapted, f"tiny:{name}") == wanted[f"tiny:{name}"]
    wait_until(lambda: rows().keys() == {"p", "r"}, what="the eviction")
    page = session.get(f"/models/{adapted.checkpoint_id('tiny')}/?tab=adapters").text
    # The heartbeat may still say that the last request goes through p.
    assert len(re.findall("used <time|1 request now", page)) == 2 and page.count(">pinned</span>") == 1
    second = order("q", "load")
    assert (second.status_code, second.json()["resident"]) == (200, True), second.text
    full = order("r", "load")
    assert full.status_code == 409 and "leave no place for this one" in full.json()["error"]["message"], full.text
    assert not next(row for row in session.get(f"{path}/adapters").json() if row["name"] == "r")["pinned"]
    with pytest.raises(openai.ConflictError, match="unload one of them, or raise max_adapters"):
        complete(adapted, "tiny:r")
    gone = order("p", "unload")
    assert (gone.status_code, gone.json()["resident"]) == (200, False), gone.text
    assert complete(adapted, "tiny:r") == wanted["tiny:r"]
    wait_until(lambda: rows().keys() == {"q", "r"}, what="the other adapter in the free place")
    for name in "pqr":
        assert session.delete(f"{path}/adapters/{keys[name]}").status_code == 204
    wait_until(lambda: not adapted.workers()[0].models[0].adapters, what="the memory of removed ones")
    small = session.patch(f"{path}/settings", json={"settings": {"max_adapters": None}})
    assert small.status_code == 200, small.text
    unload(adapted, session)  # other tests begin with as many places as before


def test_tools_made_for_vllm_load_and_unload(
    adapted: LiveServer, checkpoint: Checkpoint, answers: dict[str, list[int]]
) -> None:
    place = write_adapter(checkpoint.directory / "few" / "vllm", 30)
    wanted = run_alone(checkpoint, {"vllm": place})["tiny:vllm"]
    with httpx.Client(base_url=adapted.url, headers=adapted.admin_headers, timeout=60) as client:
        loaded = client.post("/v1/load_lora_adapter", json={"lora_name": "tiny:vllm", "lora_path": str(place)})
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'tiny:vllm' added successfully.")
        assert complete(adapted, "tiny:vllm") == wanted
        unloaded = client.post("/v1/unload_lora_adapter", json={"lora_name": "tiny:vllm"})
        assert unloaded.status_code == 200, unloaded.text
    with pytest.raises(openai.NotFoundError):
        complete(adapted, "tiny:vllm")
    assert complete(adapted, "tiny") == answers["tiny"]


def test_an_xlora_is_loaded_with_room_for_both_passes(
    adapted: LiveServer, session: httpx.Client, checkpoint: Checkpoint, answers: dict[str, list[int]]
) -> None:
    place = write_xlora(checkpoint.directory / "mix", 3, layerwise_scalings=True)
    found = run_alone(checkpoint, {"mix": place})
    assert found["tiny:mix"] not in answers.values()
    path = f"/registry/checkpoints/{adapted.checkpoint_id('tiny')}"
    made = session.post(f"{path}/adapters", json={"path": str(place)})
    assert (made.status_code, made.json()["kind"]) == (201, "xlora"), made.text
    with ThreadPoolExecutor(4) as threads:
        asked = ["tiny:mix", "tiny:a2", "tiny", "tiny:mix"]
        wanted = [(answers | found)[model] for model in asked]
        assert list(threads.map(lambda model: complete(adapted, model), asked)) == wanted
    promoted = session.post(f"{path}/promote", json={"alias": "prod", "adapter": made.json()["id"]})
    assert promoted.status_code == 201, promoted.text
    body = {"model": "prod", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{adapted.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=60).json()
    assert (answer["model"], answer["choices"][0]["token_ids"]) == ("tiny:mix", found["tiny:mix"])
    refused = httpx.post(f"{adapted.url}/v1/states", json={"name": "s", "model": "prod", "prompt": PROMPT}, timeout=60)
    assert refused.status_code == 400 and "has two states" in refused.json()["error"]["message"]
    assert session.delete(f"{path}/adapters/{made.json()['id']}").status_code == 409
