"""The end of a batch: its files, its counts, its usage."""

from __future__ import annotations

from inference.batches import ending, upkeep
from inference.batches.batch_claims import BatchClaim, FenceLost
from inference.files import store
from inference.models import BatchLine, UsageRecord
from inference.values.plan import JOB_PRIORITY
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work
from tests.inference.rows import damage


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


def test_a_batch_whose_names_of_models_are_damaged_runs_and_ends(manager):
    batch = make_batch([line("a"), line("b")])
    upkeep.batches_turn(owner="keeper")
    damage(batch, "checkpoints", '{"cut')
    damage(BatchLine.objects.get(custom_id="b"), "body", '{"cut')
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_completed, batch.num_failed) == ("completed", 1, 1)
    assert UsageRecord.objects.get().model == ""


def test_the_files_are_on_the_disk_before_anybody_waits_for_a_lock(manager, monkeypatch):
    sizes = []

    def locked():
        sizes.extend(path.stat().st_size for path in store.unfinished_files())
        return store.store_lock()

    monkeypatch.setattr(ending, "store_lock", locked)
    batch = work(make_batch([line("a"), line("b", priority="high")]), make_runner(manager))
    assert (batch.num_completed, batch.num_failed) == (1, 1)
    assert len(sizes) == 2
    assert min(sizes) > 0


def test_a_stop_between_the_files_leaves_none_of_them(manager, monkeypatch):
    batch = make_batch([line("a"), line("b", priority="high")])
    pause, calls = BatchClaim.pause, []

    def stop_at_the_second(claim: BatchClaim) -> None:
        calls.append(len(store.unfinished_files()))
        if len(calls) == 2:
            raise FenceLost
        pause(claim)

    upkeep.batches_turn(owner="keeper")
    item = make_runner(manager)
    for _ in range(3):
        item.turn()
    monkeypatch.setattr(BatchClaim, "pause", stop_at_the_second)
    upkeep.batches_turn(owner="keeper")
    assert calls == [1, 2]
    assert store.unfinished_files() == []
    batch.refresh_from_db()
    assert not batch.is_finished
