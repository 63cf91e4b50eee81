"""Batches from the file to the files, against real rows and a manager that answers at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.batches import lines, outcomes, runner, upkeep
from inference.batches.services import batch_cancel
from inference.errors import Conflict, GenerationFailed, InvalidRequest, ModelLoadFailed, ModelLoading
from inference.models import BatchLine, UsageRecord
from inference.values.principal import LOCAL, UNAUTHENTICATED
from models_registry.aliases import alias_promote
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.rows import make_adapter, make_checkpoint


def embed(custom_id: str, given: Any, **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": given, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


def respond(custom_id: str, given: Any = "abc", **body: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": given, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


def test_a_database_that_goes_away_between_claim_and_start_loses_no_line(manager, away_at_first):
    """The first look at the model fails; the claimed lines wait for the next turn."""
    batch = make_batch(line(str(number)) for number in range(3))
    upkeep.batches_turn(owner="keeper")
    item = make_runner(manager)
    with pytest.raises(OperationalError):
        item.turn()
    batch = work(batch, item)
    assert batch.num_completed == 3
    assert {row["response"]["request_id"][-2:] for row in contents(batch.output_file_id)} == {"-1"}


def test_a_worker_that_ends_gives_lines_back_that_have_not_started(manager, away_at_first):
    make_batch(line(str(number)) for number in range(3))
    upkeep.batches_turn(owner="keeper")
    item = make_runner(manager)
    with pytest.raises(OperationalError):
        item.turn()
    BatchLine.objects.update(lease_until=timezone.now())
    item._heartbeat(0.0)
    assert not BatchLine.objects.filter(lease_until__lte=timezone.now()).exists(), "held until the database is back"
    item._hand_back()
    assert set(BatchLine.objects.values_list("state", "attempts")) == {("queued", 0)}


@pytest.fixture
def away_at_first(monkeypatch):
    """The database goes away when the runner looks at a model for the first time."""
    read, away = runner.served_model_of_checkpoint, iter([True])

    def sometimes(name: str, checkpoint_id: str) -> Any:
        if next(away, False):
            raise OperationalError("gone")
        return read(name, checkpoint_id)

    monkeypatch.setattr(runner, "served_model_of_checkpoint", sometimes)


def test_lines_stay_with_the_model_that_their_alias_meant(manager, model):
    """The other model has no tokenizer, so that it would refuse the lines."""
    alias_promote(name="prod", checkpoint=model)
    batch = make_batch([line("a", model="prod")])
    upkeep.batches_turn(owner="keeper")
    alias_promote(name="prod", checkpoint=make_checkpoint("other", kind="none", template=None))
    batch = work(batch, make_runner(manager))
    assert (batch.num_completed, batch.num_failed) == (1, 0)
    assert [message["model"] for message in manager.messages] == [str(model.pk)]


def test_lines_whose_alias_meant_an_adapter_do_not_run_without_it(manager, model):
    alias_promote(name="prod", checkpoint=model, adapter=make_adapter(model))
    batch = make_batch([line("a", model="prod"), line("b")])
    upkeep.batches_turn(owner="keeper")
    alias_promote(name="prod", checkpoint=make_checkpoint("other"))
    batch = work(batch, make_runner(manager))
    assert (batch.num_completed, batch.num_failed) == (1, 1)
    (refused,) = contents(batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("a", 409)
    assert "submit the request again" in refused["response"]["body"]["error"]["message"]


@pytest.mark.parametrize("options", [{"priority": -1}, {"keep_alive": -1}, {"keep_alive": 0}])
def test_a_line_is_held_to_the_scopes_of_its_key(manager, options):
    ordinary, _ = api_key_create(name="ordinary")
    special, _ = api_key_create(name="special", scopes=["files", "priority", "lifecycle"])
    lines = [line("a", **options), line("b")]
    batch = work(make_batch(lines, principal_of_tenant(f"key:{ordinary.pk}")), make_runner(manager))
    (refused,) = contents(batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("a", 403)
    assert batch.num_completed == 1
    batch = work(make_batch(lines, principal_of_tenant(f"key:{special.pk}")), make_runner(manager))
    assert batch.num_completed == 2


@pytest.mark.parametrize(("caller", "num_completed"), [(LOCAL, 2), (UNAUTHENTICATED, 1)])
def test_a_line_may_have_the_options_of_its_caller_without_a_key(manager, settings, caller, num_completed):
    settings.BLAZR_NO_AUTH = True  # both have the same tenant
    batch = work(make_batch([line("a", priority=-1), line("b")], caller), make_runner(manager))
    assert batch.num_completed == num_completed


def test_lines_of_different_keys_count_as_different_callers(manager):
    tenants = []
    for name in ("first", "second"):
        key, _ = api_key_create(name=name)
        tenants.append(f"key:{key.pk}")
        work(make_batch([line("a")], principal_of_tenant(tenants[-1])), make_runner(manager))
    work(make_batch([line("a")]), make_runner(manager))
    assert [message["owner"] for message in manager.messages] == [*tenants, LOCAL.tenant]


def test_a_line_that_cannot_be_put_together_ends_with_an_error(manager, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(outcomes, "output_formatter", broken)
    batch = work(make_batch([line("a")]), make_runner(manager))
    assert (batch.state, batch.num_failed, batch.completion_tokens) == ("completed", 1, 2)
    (error,) = contents(batch.error_file_id)
    assert error["response"]["status_code"] == 500
    assert "bug" not in error["response"]["body"]["error"]["message"]


def die(owner: str) -> None:
    """The worker's process is gone and its leases have lapsed."""
    lines.lines_abandon(owner=owner)
    lines.lines_sweep()


def test_errors_of_the_engine_are_tried_again_and_refusals_are_not(manager):
    tries: dict[str, int] = {}

    def failure(message):
        text = message["prompt"]["text"]
        tries[text] = tries.get(text, 0) + 1
        if text == "bad":
            return InvalidRequest("no.", param="prompt")
        if text == "busy" and tries[text] < 6:
            return ModelLoading("wait.", retry_after_s=1)
        if text == "waits" and tries[text] < 6:
            return ModelLoadFailed("other models use the memory.", retry_after_s=1)
        if text == "shaky" and tries[text] < 3:
            return GenerationFailed("oops.")
        return GenerationFailed("always.") if text == "broken" else None

    manager.failure = failure
    batch = make_batch(line(name, name) for name in ("good", "bad", "busy", "waits", "shaky", "broken"))
    item = make_runner(manager, window=8)
    for _ in range(40):
        BatchLine.objects.update(not_before=None)
        work(batch, item, turns=1)
    assert batch.state == "completed"
    assert tries == {"good": 1, "bad": 1, "busy": 6, "waits": 6, "shaky": 3, "broken": 3}
    assert {item["custom_id"] for item in contents(batch.output_file_id)} == {"good", "busy", "waits", "shaky"}


def test_a_finished_batch_cannot_be_cancelled(manager):
    batch = work(make_batch([line("a")]), make_runner(manager))
    with pytest.raises(Conflict, match="completed"):
        batch_cancel(batch_id=batch.batch_id, principal=LOCAL)


def test_a_cancelled_line_costs_nothing(manager):
    """Its line of the error file says that it was not executed."""
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    item = make_runner(manager)
    work(batch, item, turns=2)
    ((message, on_events),) = manager.held.values()
    head = {"request_id": message["request_id"], "attempt": 0}
    delta = {"choice": 0, "text": "cb", "token_ids": [1, 2], "finish_reason": None, "stop_reason": None}
    on_events(
        [{**head, "index": 0, "type": "start", "prompt_tokens": 3}, {**head, "index": 1, "type": "delta", **delta}]
    )
    item.turn()
    batch_cancel(batch_id=batch.batch_id, principal=LOCAL)
    batch = work(batch, item)
    assert (batch.state, batch.num_failed, batch.prompt_tokens, batch.completion_tokens) == ("cancelled", 1, 0, 0)
    (row,) = contents(batch.error_file_id)
    assert row["error"]["code"] == "batch_cancelled"
    assert UsageRecord.objects.count() == 0


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


def test_the_last_attempt_of_a_line_is_alone_and_nothing_is_claimed_beside_a_suspect(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    for number in range(3):
        work(batch, make_runner(manager, f"w{number}"), turns=2)
        die(f"w{number}")
    assert ["alone_tokens" in message for message in manager.messages] == [False, False, True]
    other = make_batch([line("b")])
    manager.runs_alone = True
    work(other, make_runner(manager, "w"), turns=2)
    assert len(manager.messages) == 3


def test_only_crashes_while_a_line_runs_alone_count(manager):
    manager.holds = lambda message: True
    batch = make_batch([line("a")])
    for number in range(2):
        work(batch, make_runner(manager, f"w{number}"), turns=2)
        die(f"w{number}")
    manager.grants_turns = False
    for number in range(2, 6):
        work(batch, make_runner(manager, f"w{number}"), turns=2)
        assert len(manager.alone) == number - 1
        die(f"w{number}")
    row = batch.lines.get()
    assert (row.state, row.attempts) == ("queued", 2)
    drained = make_runner(manager, "drained")
    work(batch, drained, turns=2)
    drained._hand_back()
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("queued", 2)
    manager.grants_turns, manager.holds = True, lambda message: False
    assert work(batch, make_runner(manager, "last"), turns=4).num_completed == 1


def test_a_revoked_key_runs_nothing_new(manager):
    row, _ = api_key_create(name="gone")
    batch = make_batch([line("a")], principal_of_tenant(f"key:{row.pk}"))
    api_key_revoke(prefix=row.prefix)
    batch = work(batch, make_runner(manager))
    assert batch.state == "failed"
    assert "revoked" in batch.errors
