"""Batches from the file to the files, against real rows and a manager that answers at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.db import OperationalError
from django.utils import timezone

from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.batches import lines, outcomes, runner, upkeep, validation
from inference.batches.services import batch_cancel
from inference.errors import Conflict, GenerationFailed, InvalidRequest, ModelLoading
from inference.jobs import hints
from inference.models import ApiKey, Batch, BatchLine, BatchResult, LineState, UsageRecord
from inference.values.plan import JOB_PRIORITY
from inference.values.principal import LOCAL
from tests.inference.batches.fakes import EchoManager, contents, line, make_batch
from tests.inference.rows import make_checkpoint


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Turns are taken by hand, without a thread: everything that is due happens at once."""
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "RETRY_DELAY_S"):
        monkeypatch.setattr(runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def model(transactional_db):
    return make_checkpoint()


@pytest.fixture
def manager(model) -> EchoManager:
    return EchoManager(str(model.pk))


def make_runner(manager: EchoManager, owner: str = "w", window: int = 4) -> runner.BatchRunner:
    return runner.BatchRunner(manager, owner=owner, window=window)


def work(batch: Batch, *runners: runner.BatchRunner, turns: int = 60) -> Batch:
    """Turn everything until the batch has ended, or so often."""
    for _ in range(turns):
        upkeep.batches_turn(owner="keeper")
        for item in runners:
            item.turn()
        batch.refresh_from_db()
        if batch.is_finished:
            break
    return batch


def test_every_line_is_answered_once_in_the_order_of_the_file(manager):
    batch = work(make_batch(line(f"r{number}", f"text {number}") for number in range(10)), make_runner(manager))
    assert batch.state == "completed"
    assert (batch.num_total, batch.num_completed, batch.num_failed) == (10, 10, 0)
    assert (batch.prompt_tokens, batch.completion_tokens) == (30, 20)
    output = contents(batch.output_file_id)
    assert [item["custom_id"] for item in output] == [f"r{number}" for number in range(10)]
    assert len({item["id"] for item in output}) == 10
    answer = output[3]["response"]
    assert answer["status_code"] == 200
    assert answer["body"]["choices"][0]["text"] == "3 txet"
    assert answer["body"]["object"] == "text_completion"
    assert output[3]["error"] is None
    assert batch.error_file_id == ""
    assert {message["priority"] for message in manager.messages} == {JOB_PRIORITY}
    (usage,) = UsageRecord.objects.all()
    assert (usage.model, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == ("tiny", 30, 20, 10)
    assert (usage.queue_s, usage.engine_s) == (2.5, 5.0)


def embed(custom_id: str, given: Any, **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": given, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


def test_lines_of_embeddings_have_the_answers_of_their_endpoint(manager):
    batch = make_batch(
        [
            embed("one", "abc", normalize=False),
            embed("many", ["x"] * 100, normalize=False, dimensions=1),
            embed("packed", [[1, 2]], encoding_format="base64"),
            embed("wide", "abc", dimensions=4096),
            embed("prompt", "abc", temperature=1),
        ],
        endpoint="/v1/embeddings",
    )
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 3, 2)
    output = {item["custom_id"]: item["response"]["body"] for item in contents(batch.output_file_id)}
    (one,) = output["one"]["data"]
    assert (one["object"], one["index"], one["embedding"]) == ("embedding", 0, [3.0] + [0.0] * 14 + [1.0])
    assert output["one"]["id"].startswith("embd-")
    assert output["one"]["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert [item["index"] for item in output["many"]["data"]] == list(range(100))
    assert output["many"]["data"][99]["embedding"] == [1.0]
    assert isinstance(output["packed"]["data"][0]["embedding"], str)
    errors = {item["custom_id"]: item["response"]["body"]["error"] for item in contents(batch.error_file_id)}
    assert {name: item["param"] for name, item in errors.items()} == {"wide": "dimensions", "prompt": "temperature"}
    (usage,) = UsageRecord.objects.all()
    assert (usage.prompt_tokens, usage.completion_tokens) == (206, 0)  # the wide one was computed


def respond(custom_id: str, given: Any = "abc", **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": given, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


def test_lines_of_responses_have_the_answers_of_their_endpoint(manager):
    refused = {
        "stream": True,
        "background": True,
        "store": True,
        "previous_response_id": "resp_1",
        "truncation": "auto",
    }
    batch = make_batch(
        [
            respond("text", metadata={"a": "b"}, instructions="Be short."),
            respond("items", [{"role": "user", "content": [{"type": "input_text", "text": "def"}]}], store=False),
            respond("odd", max_output_tokens=0),
            respond("long", "fail"),
            *(respond(name, **{name: value}) for name, value in refused.items()),
        ],
        endpoint="/v1/responses",
    )
    manager.failure = lambda message: (
        InvalidRequest("messages are too long.", param="messages")
        if message["prompt"]["messages"][-1]["content"] == "fail"
        else None
    )
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 2, 7)
    output = {item["custom_id"]: item["response"]["body"] for item in contents(batch.output_file_id)}
    first = output["text"]
    assert (first["object"], first["status"], first["store"]) == ("response", "completed", False)
    assert (first["model"], first["metadata"], first["instructions"]) == ("tiny", {"a": "b"}, "Be short.")
    assert first["id"].startswith("resp_")
    assert [item["content"][0]["text"] for item in first["output"]] == ["cba"]
    assert (first["usage"]["input_tokens"], first["usage"]["output_tokens"]) == (3, 2)
    assert output["items"]["output"][0]["content"][0]["text"] == "fed"
    errors = {item["custom_id"]: item["response"]["body"]["error"] for item in contents(batch.error_file_id)}
    assert {name: item["param"] for name, item in errors.items()} == {
        "odd": "max_output_tokens", "long": "input", **{name: name for name in refused},
    }  # fmt: skip


def test_a_file_with_too_many_inputs_fails(manager, monkeypatch):
    monkeypatch.setattr("inference.batches.validation.MAX_INPUTS", 10)
    batch = make_batch([embed("a", ["x"] * 6), embed("b", ["x"] * 5)], endpoint="/v1/embeddings")
    batch = work(batch, make_runner(manager))
    assert (batch.state, "too_many_inputs" in batch.errors) == ("failed", True)
    fits = make_batch([embed("a", ["x"] * 6), embed("b", [1, 2, 3, 4, 5])], endpoint="/v1/embeddings")
    assert work(fits, make_runner(manager)).num_completed == 2


def test_a_database_that_goes_away_between_claim_and_start_loses_no_line(manager, monkeypatch):
    """The first look at the model fails; the claimed lines wait for the next turn."""
    batch = make_batch(line(str(number)) for number in range(3))
    upkeep.batches_turn(owner="keeper")
    read, away = runner.served_model_read, iter([True])

    def sometimes(name: str) -> Any:
        if next(away, False):
            raise OperationalError("gone")
        return read(name)

    monkeypatch.setattr(runner, "served_model_read", sometimes)
    item = make_runner(manager)
    with pytest.raises(OperationalError):
        item.turn()
    batch = work(batch, item)
    assert batch.num_completed == 3
    assert {row["response"]["request_id"][-2:] for row in contents(batch.output_file_id)} == {"-1"}


def test_lines_that_were_claimed_and_never_started_go_back(manager, monkeypatch):
    """The database goes away while lines of a second batch are claimed: those of the first are nowhere here."""
    for _ in range(2):
        make_batch([line("a"), line("b")], priority=len(Batch.objects.all()))
    upkeep.batches_turn(owner="keeper")
    first = Batch.objects.order_by("pk")[0]
    lines.lines_claim(batch=first, owner="w", limit=1)
    manager.holds = lambda message: True
    item = make_runner(manager)
    for _ in range(3):
        item.turn()
    assert len(manager.held) == 4
    assert set(BatchLine.objects.values_list("state", "attempts")) == {("running", 1)}


def test_a_line_that_cannot_be_put_together_ends_with_an_error(manager, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(outcomes, "answer_format", broken)
    batch = work(make_batch([line("a")]), make_runner(manager))
    assert (batch.state, batch.num_failed, batch.completion_tokens) == ("completed", 1, 2)
    (error,) = contents(batch.error_file_id)
    assert error["response"]["status_code"] == 500
    assert "bug" not in error["response"]["body"]["error"]["message"]


def test_bad_lines_end_in_the_error_file_and_the_rest_runs(manager):
    batch = make_batch(
        [
            line("good"),
            line("hot", temperature=99),
            line("unknown field", frobnicate=1),
            line("no model", model=None),
            line("other model", model="nobody"),
            line("stream", stream=True),
            line("two prompts", ["ab", "cd"]),
        ]
    )
    batch = work(batch, make_runner(manager))
    assert batch.state == "completed"
    assert (batch.num_completed, batch.num_failed) == (2, 5)
    output = {item["custom_id"]: item for item in contents(batch.output_file_id)}
    assert [choice["text"] for choice in output["two prompts"]["response"]["body"]["choices"]] == ["ba", "dc"]
    errors = {item["custom_id"]: item["response"] for item in contents(batch.error_file_id)}
    assert set(output) == {"good", "two prompts"}
    assert {name: item["status_code"] for name, item in errors.items()} == {
        "hot": 400, "unknown field": 400, "no model": 400, "other model": 404, "stream": 400,
    }  # fmt: skip
    assert errors["hot"]["body"]["error"]["param"] == "temperature"
    assert errors["other model"]["body"]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ([b"{"], "invalid_json_line", 1),
        ([line("a"), b"[1]"], "invalid_json_line", 2),
        ([line("a"), b"", line("a")], "duplicate_custom_id", 3),
        ([{**line("a"), "url": "/v1/embeddings"}], "mismatched_url", 1),
        ([{**line("a"), "method": "GET"}], "invalid_method", 1),
        ([{**line("a"), "custom_id": None}], "missing_required_parameter", 1),
        ([{**line("a"), "custom_id": 7}], "invalid_custom_id", 1),
        ([{**line("a"), "body": "x"}], "invalid_type", 1),
        ([{**line("a"), "more": 1}], "unknown_parameter", 1),
        ([b"  "], "empty_file", None),
    ],
)
def test_a_file_that_cannot_run_fails_with_the_lines_that_are_wrong(manager, lines, code, number):
    batch = work(make_batch(lines), make_runner(manager))
    assert batch.state == "failed"
    import json

    (error,) = json.loads(batch.errors)
    assert (error["code"], error["line"]) == (code, number)
    assert BatchLine.objects.count() == 0
    assert manager.messages == []


def test_too_many_lines_fail_the_batch(manager, monkeypatch):
    monkeypatch.setattr("inference.batches.validation.MAX_LINES", 2)
    batch = work(make_batch([line("a"), line("b"), line("c")]), make_runner(manager))
    assert batch.state == "failed"
    assert "more than 2 requests" in batch.errors


def test_the_window_is_a_limit(manager):
    manager.holds = lambda message: True
    batch = make_batch(line(str(number)) for number in range(20))
    item = make_runner(manager, window=4)
    work(batch, item, turns=3)
    assert (item.num_running, manager.most_held) == (4, 4)
    for _ in range(10):
        manager.answer_held()
        item.turn()
    assert work(batch, item).num_completed == 20
    assert manager.most_held == 4


def die(owner: str) -> None:
    """The worker's process is gone and its leases have lapsed."""
    lines.lines_abandon(owner=owner)
    lines.lines_sweep()


def test_a_dead_worker_costs_only_its_running_lines(manager):
    manager.holds = lambda message: message["prompt"]["text"] in ("3", "4")
    batch = make_batch(line(str(number), str(number)) for number in range(8))
    work(batch, make_runner(manager, "first"), turns=6)
    done = set(BatchLine.objects.filter(state=LineState.COMPLETED).values_list("custom_id", flat=True))
    assert BatchLine.objects.filter(state=LineState.RUNNING).count() == 2
    manager.holds = lambda message: False
    manager.messages.clear()
    die("first")
    batch = work(batch, make_runner(manager, "second"))
    assert batch.num_completed == 8
    again = [message["prompt"]["text"] for message in manager.messages]
    assert not done & set(again)
    assert {"3", "4"} <= set(again)
    assert [item["custom_id"] for item in contents(batch.output_file_id)] == [str(number) for number in range(8)]


def test_a_worker_that_only_slept_writes_nothing_any_more(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    slow = make_runner(manager, "slow")
    work(batch, slow, turns=2)
    asleep = dict(manager.held)
    manager.held.clear()
    die("slow")
    manager.holds = lambda message: False
    batch = work(batch, make_runner(manager, "quick"))
    assert batch.num_completed == 1
    for message, on_events in asleep.values():
        manager._answer(message, on_events)
    slow.turn()
    batch.refresh_from_db()
    assert batch.num_completed == 1
    assert BatchResult.objects.count() == 1


def test_poison_is_set_aside_after_three_attempts_and_harms_nobody(manager):
    """The line 'p' kills its worker each time; the others were there and are innocent."""
    prompts = ["p" if number == 5 else f"t{number}" for number in range(12)]
    batch = make_batch(line(prompt, prompt) for prompt in prompts)
    starts = 0
    for life in range(10):
        # Nobody gets an answer out of a worker that has the poison line: it dies at once.
        manager.held.clear()
        manager.holds = lambda message: bool(manager.held) or message["prompt"]["text"] == "p"
        owner = f"life {life}"
        item = make_runner(manager, owner, window=12)
        work(batch, item, turns=20)
        if batch.is_finished:
            break
        starts += 1
        die(owner)
    assert batch.state == "completed"
    assert (batch.num_completed, batch.num_failed) == (11, 1)
    assert starts == 3
    (error,) = contents(batch.error_file_id)
    assert error["custom_id"] == "p"
    assert error["response"]["status_code"] == 500
    assert "died 3 times" in error["response"]["body"]["error"]["message"]


def test_suspects_run_after_the_rest_in_small_groups(manager):
    manager.holds = lambda message: True
    batch = make_batch(line(str(number)) for number in range(40))
    work(batch, make_runner(manager, "first", window=20), turns=2)
    assert len(manager.held) == 20
    die("first")
    manager.held.clear()
    manager.messages.clear()
    item = make_runner(manager, "second", window=20)
    sizes = []
    for _ in range(30):
        upkeep.batches_turn(owner="keeper")
        item.turn()
        if manager.held:
            sizes.append(len(manager.held))
            manager.answer_held()
    batch.refresh_from_db()
    assert batch.num_completed == 40
    assert sizes == [20, 8, 8, 4]


def test_errors_of_the_engine_are_tried_again_and_refusals_are_not(manager):
    tries: dict[str, int] = {}

    def failure(message):
        text = message["prompt"]["text"]
        tries[text] = tries.get(text, 0) + 1
        if text == "bad":
            return InvalidRequest("no.", param="prompt")
        if text == "busy" and tries[text] < 6:
            return ModelLoading("wait.", retry_after_s=1)
        if text == "shaky" and tries[text] < 3:
            return GenerationFailed("oops.")
        return GenerationFailed("always.") if text == "broken" else None

    manager.failure = failure
    batch = make_batch(line(name, name) for name in ("good", "bad", "busy", "shaky", "broken"))
    item = make_runner(manager, window=8)
    for _ in range(40):
        BatchLine.objects.update(not_before=None)
        work(batch, item, turns=1)
    assert batch.state == "completed"
    assert tries == {"good": 1, "bad": 1, "busy": 6, "shaky": 3, "broken": 3}
    assert {item["custom_id"] for item in contents(batch.output_file_id)} == {"good", "busy", "shaky"}


def test_cancel_keeps_what_is_done_and_names_the_rest(manager):
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), line("b"), line("c"), line("d")])
    item = make_runner(manager, window=2)
    work(batch, item, turns=3)
    assert batch_cancel(batch_id=batch.batch_id, principal=LOCAL).state == "cancelling"
    batch = work(batch, item)
    assert batch.state == "cancelled"
    assert (batch.num_completed, batch.num_failed) == (1, 3)
    assert [item["custom_id"] for item in contents(batch.output_file_id)] == ["a"]
    assert {item["error"]["code"] for item in contents(batch.error_file_id)} == {"batch_cancelled"}
    assert manager.held == {}
    assert batch_cancel(batch_id=batch.batch_id, principal=LOCAL).state == "cancelled"


def test_cancel_before_the_validation_leaves_nothing(manager):
    batch = make_batch([line("a")])
    batch_cancel(batch_id=batch.batch_id, principal=LOCAL)
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_total, batch.output_file_id) == ("cancelled", 0, "")


def test_a_finished_batch_cannot_be_cancelled(manager):
    batch = work(make_batch([line("a")]), make_runner(manager))
    with pytest.raises(Conflict, match="completed"):
        batch_cancel(batch_id=batch.batch_id, principal=LOCAL)


def test_when_the_window_is_over_the_rest_expires(manager):
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), line("b"), line("c")], completion_window="1m")
    item = make_runner(manager, window=2)
    work(batch, item, turns=3)
    Batch.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    batch = work(batch, item)
    assert batch.state == "expired"
    assert (batch.num_completed, batch.num_failed) == (1, 2)
    assert {item["error"]["code"] for item in contents(batch.error_file_id)} == {"batch_expired"}


def test_a_draining_worker_hands_its_lines_back_without_counting_the_attempt(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    item = make_runner(manager)
    work(batch, item, turns=2)
    item._hand_back()
    row = BatchLine.objects.get()
    assert (row.state, row.attempts, row.owner) == ("queued", 0, "")


def test_validation_goes_on_where_a_killed_worker_stopped(manager, monkeypatch):
    monkeypatch.setattr(validation, "INSERT_BATCH", 3)
    batch = make_batch(line(str(number)) for number in range(8))
    calls = 0

    def stopping() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3  # in the middle of the second pass

    upkeep.batches_turn(owner="first", stopping=stopping)
    batch.refresh_from_db()
    assert batch.state == "validating"
    assert 0 < BatchLine.objects.count() < 8
    batch = work(batch, make_runner(manager))
    assert batch.num_completed == 8


def test_the_same_seed_is_drawn_in_every_attempt(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a"), line("b")])
    work(batch, make_runner(manager, "first"), turns=2)
    die("first")
    work(batch, make_runner(manager, "second"), turns=4)
    seeds: dict[str, set[int]] = {}
    for message in manager.messages:
        seeds.setdefault(message["request_id"].rpartition("-")[0], set()).add(message["params"]["seed"])
    assert len(manager.messages) == 4
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 2


def test_workers_that_claim_at_once_never_get_the_same_line(manager):
    import threading

    from django.db import connections

    batch = make_batch(line(str(number)) for number in range(120))
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    claimed: list[int] = []

    def claim(owner: str) -> None:
        try:
            while found := lines.lines_claim(batch=batch, owner=owner, limit=7):
                claimed.extend(item.key for item in found)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=claim, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(claimed) == len(set(claimed))
    # SKIP LOCKED: a worker may see nothing while others hold the last lines, but nothing is left over.
    assert len(claimed) + BatchLine.objects.filter(state=LineState.QUEUED).count() == 120


def test_results_that_come_twice_count_once(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a"), line("b")])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    held = lines.lines_claim(batch=batch, owner="w", limit=2)
    finished = [lines.FinishedLine(line=item, payload="{}", completion_tokens=5) for item in held]
    assert lines.lines_finish(finished=finished) == set()
    assert lines.lines_finish(finished=finished) == {(item.key, item.fence) for item in held}
    batch.refresh_from_db()
    assert (batch.num_completed, batch.completion_tokens, BatchResult.objects.count()) == (2, 10, 2)


def test_a_revoked_key_runs_nothing_new(manager):
    row, _ = api_key_create(name="gone")
    batch = make_batch([line("a")], principal_of_tenant(f"key:{row.pk}"))
    api_key_revoke(prefix=row.prefix)
    batch = work(batch, make_runner(manager))
    assert batch.state == "failed"
    assert "revoked" in batch.errors


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_key_that_is_void_ends_its_running_batches_and_what_is_done_stays(manager, how):
    """Nobody else's: the batch of another key, and one without a key, go on."""
    row, _ = api_key_create(name="gone")
    other, _ = api_key_create(name="stays")
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), *(line(name) for name in "bcdef")], principal_of_tenant(f"key:{row.pk}"))
    waiting = make_batch([line("g")], principal_of_tenant(f"key:{row.pk}"))
    others = [make_batch([line("h")], principal_of_tenant(f"key:{other.pk}")), make_batch([line("i")])]
    item = make_runner(manager, window=3)
    work(batch, item, turns=3)
    assert Batch.objects.get(pk=batch.pk).num_completed == 1
    assert manager.held
    if how == "revoked":
        api_key_revoke(prefix=row.prefix)
    else:
        ApiKey.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    manager.holds = lambda message: False
    batch = work(batch, item)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("failed", 1, 5)
    (problem,) = orjson.loads(batch.errors)
    assert problem["code"] == "invalid_api_key"
    assert "revoked or has expired" in problem["message"]
    assert [found["custom_id"] for found in contents(batch.output_file_id)] == ["a"]
    ended = contents(batch.error_file_id)
    assert [found["custom_id"] for found in ended] == list("bcdef")
    assert {found["error"]["code"] for found in ended} == {"invalid_api_key"}
    assert UsageRecord.objects.filter(tenant=f"key:{row.pk}").get().completion_tokens == 2
    waiting.refresh_from_db()
    assert waiting.state == "failed"
    manager.answer_held()
    for found in others:
        assert work(found, item).state == "completed"


def test_lines_and_expired_outputs_are_removed_in_time(manager):
    from inference.files.services import files_sweep
    from inference.models import StoredFile

    batch = work(make_batch([line("a")]), make_runner(manager))
    assert upkeep.batches_sweep() == 0
    Batch.objects.update(ended_at=timezone.now() - upkeep.LINES_KEPT - timedelta(seconds=1))
    assert upkeep.batches_sweep() > 0
    assert (BatchLine.objects.count(), BatchResult.objects.count()) == (0, 0)
    assert contents(batch.output_file_id)
    StoredFile.objects.update(expires_at=timezone.now())
    assert files_sweep() == 2
