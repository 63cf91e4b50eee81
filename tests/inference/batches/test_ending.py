"""The end of a batch: its files, its counts, its usage."""

from __future__ import annotations

from inference.batches import upkeep
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
