"""ResidentModels: when it pauses the queue of a model, and resumes it."""

from __future__ import annotations

from inference.errors import ModelLoadFailed
from inference.worker.resident import MAX_WAITING
from tests.inference.worker.fakes import message
from tests.inference.worker.test_resident_models import add, event, ignore, load, table


def test_back_pressure_pauses_and_resumes_the_queue_in_order():
    models = table()
    presence = models._presence
    requests = [models.add_request(message(f"r{number}"), ignore).request for number in range(3)]
    load(models, max_num_seqs=2)
    assert presence.calls == []
    requests.append(models.add_request(message("r3"), ignore).request)
    assert [item.request_id for item in models.admit().requests] == ["r3"]
    assert add(models, "job", priority=1000) == ["job"]
    assert presence.calls == [("pause", "a")]
    models.close_request(requests.pop())
    assert presence.calls == [("pause", "a"), ("resume", "a")]


def test_a_model_that_loads_holds_few_requests():
    models = table()
    presence = models._presence
    requests = [models.add_request(message(f"r{number}"), ignore).request for number in range(MAX_WAITING)]
    models.add_request(message("job", priority=1000), ignore)
    assert presence.calls == [("pause", "a")]
    for request in requests[: MAX_WAITING // 2]:  # clients leave
        models.close_request(request)
    assert presence.calls == [("pause", "a"), ("resume", "a")]
    load(models, max_num_seqs=2)
    assert presence.calls[2:] == [("pause", "a")]  # the engine has enough


def test_a_load_that_fails_ends_the_pause():
    models = table()
    for number in range(MAX_WAITING):
        models.add_request(message(f"r{number}"), ignore)
    resident = models.next_to_load()
    for request in models.mark_failed(resident, ModelLoadFailed("no")):
        models.close_request(request)
    assert models._presence.calls == [("pause", "a"), ("resume", "a")]


def test_the_pause_of_a_model_ends_with_it_and_begins_again_with_the_requests_that_wait():
    models = table()
    models.request_load("a", pinned=False)
    load(models)
    models.request_unload("a")
    requests = [models.add_request(message(f"r{number}"), ignore).request for number in range(MAX_WAITING)]
    assert models._presence.calls == [("pause", "a")]
    assert models.remove(requests[0].resident, has_messages=False)
    assert models._presence.calls == [("pause", "a"), ("resume", "a"), ("pause", "a")]


def test_while_a_request_runs_alone_other_workers_get_the_messages():
    models = table()
    presence = models._presence
    models.request_load("a", pinned=False)
    load(models)
    assert add(models, "suspect", alone_tokens=2) == ["suspect"]
    assert add(models, "later") == []
    assert presence.calls == [("pause", "a")]
    models.record_events(models.find_request("suspect").resident, [event("suspect", "delta", token_ids=[1, 2])])
    admission = models.admit()
    assert ([item.request_id for item in admission.requests], admission.alone) == (["later"], "")
    assert presence.calls == [("pause", "a"), ("resume", "a")]
