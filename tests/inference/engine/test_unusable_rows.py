"""Rows with NaN or infinity: whose request ends, and that the prefix cache keeps nothing of them, also on a device."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from inference.engine.request import CacheBreakpoint, FinishReason
from inference.engine.scheduler import ScheduledRequest
from inference.engine.unusable_rows import UnusableRows
from tests.inference.engine.fakes import Collected, FakeNetwork, collect, make_engine, make_spec, request, run
from tests.inference.engine.prefix_cache.test_cache_properties import check_tree

BAD = 96
"""A token behind which hidden rows are NaN."""
KINDS = ["paged", "slots", "hybrid"]


def shares_of(*shares: tuple[int, int, bool]) -> SimpleNamespace:
    """A step with a request for each (tokens, computed before, whether it samples)."""
    requests = [SimpleNamespace(error=None, known_ending=None, has_ended=False, cached=None) for _ in shares]
    return SimpleNamespace(
        scheduled=[ScheduledRequest(request, *share) for request, share in zip(requests, shares, strict=True)]
    )


def failed(step: SimpleNamespace) -> list[bool]:
    return [item.request.error is not None for item in step.scheduled]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_prompt_with_an_unusable_row_fails_alone(value: float) -> None:
    step = shares_of((1, 4, True), (3, 0, True), (2, 7, True), (1, 7, False))
    unusable, hidden = UnusableRows(reads_later=False), torch.ones((7, 4), dtype=torch.bfloat16)
    unusable.look(step, hidden)
    assert failed(step) == [False] * 4
    hidden[0, 1] = hidden[2, 3] = value  # a decode's is told by its logits
    unusable.look(step, hidden)
    assert failed(step) == [False, True, False, False]
    assert "numerical_error" in step.scheduled[1].request.error.message
    hidden[6, 0] = value
    unusable.look(step, hidden)
    assert failed(step) == [False, True, False, True], "a chunk of one token that isn't the last has no logits"


def test_flags_come_with_the_next_read() -> None:
    unusable, usable, bad = UnusableRows(reads_later=True), torch.ones((2, 4)), torch.full((2, 4), math.nan)
    steps = [shares_of((2, 0, False)) for _ in range(3)]
    for step, hidden in zip(steps, (bad, usable, bad), strict=True):
        unusable.look(step, hidden)
    assert [failed(step) for step in steps] == [[False]] * 3
    assert unusable.fetch(torch.tensor([5, 6]), torch.tensor([0.5])) == ([5, 6], [0.5])
    assert [failed(step) for step in steps] == [[True], [False], [True]]
    assert unusable.fetch() == ()
    ends = shares_of((2, 0, True))
    ends.scheduled[0].request.known_ending = FinishReason.LENGTH
    unusable.look(ends, bad)
    assert failed(ends) == [True], "what ends without a token is told now"


def test_flags_of_ended_requests_do_not_pile_up() -> None:
    unusable = UnusableRows(reads_later=True)
    for _ in range(5):
        step = shares_of((2, 0, False))
        unusable.look(step, torch.ones((2, 4)))
        step.scheduled[0].request.has_ended = True
    assert len(unusable._flags) == 1


class Poisoned(FakeNetwork):
    """Hidden rows behind ``BAD`` are NaN, and so are those before it in its chunk, as masked attention leaves them."""

    def __call__(self, batch, states):
        hidden = super().__call__(batch, states)
        for chunk in batch.prefills:
            rows = slice(chunk.start, chunk.stop)
            if bool((batch.input_ids[rows] == BAD).any()):
                hidden[rows] = math.nan
        return hidden

    def compute_logits(self, hidden):
        logits = super().compute_logits(hidden.nan_to_num())
        logits[hidden.isnan().any(-1)] = math.nan
        return logits


def engine_of(kind, *, reads_later: bool = True, **options):
    """An engine whose chunks have 8 tokens; ``reads_later``: as on a device."""
    values = {"max_num_batched_tokens": 8, "num_snapshot_slots": 6, "block_size": 4} | options
    engine = make_engine(network=Poisoned(make_spec(kind)), **values)
    engine._unusable._reads_later = reads_later
    return engine


def cached_tokens(engine, prompt: list[int], name: str = "again") -> int:
    (entry,) = run(engine, request(name, prompt, max_tokens=1)).values()
    return entry.finals[0].num_cached_tokens


@pytest.mark.parametrize("reads_later", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_others_find_nothing_of_an_unusable_chunk(kind, reads_later: bool) -> None:
    """A second request with the same beginning comes before anything was read of the first one's chunks."""
    engine, found = engine_of(kind, reads_later=reads_later, max_num_seqs=2), {}
    shared = list(range(1, 8))
    engine.add_request(request("bad", [*shared, BAD, *range(20, 40)], max_tokens=2))
    collect(engine.step(), found)
    assert ("bad" in found) is not reads_later, "on a device nothing is known of a step without tokens"
    engine.add_request(request("good", [*shared, 50, 51], max_tokens=3))
    while engine.has_unfinished():
        collect(engine.step(), found)
    assert "numerical_error" in found["bad"].finals[0].error.message
    assert found["good"].finish_reason is FinishReason.LENGTH
    assert found["good"].finals[0].num_cached_tokens == 0
    reference = run(engine_of(kind), request("good", [*shared, 50, 51], max_tokens=3))["good"]
    assert found["good"].tokens == reference.tokens
    check_tree(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_what_turns_out_usable_is_found_as_where_it_is_known_at_once(kind) -> None:
    prompts = [list(range(1, 30)), list(range(1, 20)) + [60] * 15, [7, 8, 9] * 10]
    found = []
    for reads_later in (False, True):
        engine = engine_of(kind, reads_later=reads_later, num_snapshot_slots=40)
        for number, prompt in enumerate(prompts):
            run(engine, request(f"r{number}", prompt, max_tokens=4))
        found.append([cached_tokens(engine, [*prompt, 95]) for prompt in prompts])
        check_tree(engine)
    assert found[0] == found[1] and found[0][2] >= 29


@pytest.mark.parametrize("ends", ["aborted", "preempted"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_before_it_is_known_leaves_nothing(kind, ends: str) -> None:
    options = {"max_num_seqs": 1, "num_state_slots": 2} if ends == "preempted" else {}
    engine, found = engine_of(kind, **options), {}
    prompt = [*range(1, 8), BAD, *range(20, 40)]
    engine.add_request(request("first", prompt, max_tokens=2, priority=5))
    collect(engine.step(), found)
    if ends == "aborted":
        engine.abort_request("first")
    else:
        engine.add_request(request("urgent", [3, 3, 3], max_tokens=2))
    while engine.has_unfinished():
        collect(engine.step(), found)
    if ends == "preempted":
        assert engine.stats().num_preemptions == 1
        assert found["first"].finish_reason is FinishReason.ERROR
    assert cached_tokens(engine, prompt[:7]) == 0
    check_tree(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_yields_no_token_fails_too(kind) -> None:
    """Its state would have been handed out, or nothing said."""
    bad = [*range(1, 8), BAD, *range(20, 30)]
    for source in (
        replace(request("state", bad, max_tokens=0), returns_state=True),
        request("scored", bad, max_tokens=0, prompt_logprobs=0),
        replace(request("pooled", bad, max_tokens=0), pooling="mean"),
    ):
        entry: Collected = run(engine_of(kind), source)[source.request_id]
        assert "numerical_error" in entry.finals[0].error.message


def test_a_long_prompt_leaves_half_of_the_snapshots_to_others() -> None:
    """Its states waited in all slots for a first token, and where none was left, its last states weren't kept."""
    engine = engine_of("slots", max_num_batched_tokens=256, max_model_len=2048, num_snapshot_slots=4)
    short = list(range(40, 60))
    run(engine, request("short", short, max_tokens=1))
    long = [number % 30 for number in range(5 * 256 + 100)]
    run(engine, request("long", long, max_tokens=1))
    assert cached_tokens(engine, [*short, 95], "as short") >= len(short) - 1
    assert cached_tokens(engine, [*long[:-1], 95], "as long") == len(long) - 1
    check_tree(engine)


def test_where_slots_are_few_breakpoints_stay_before_the_junction_and_that_before_others() -> None:
    """A breakpoint's state was overwritten by that of a position that nobody had named."""
    prompt = [number % 30 for number in range(2048)]
    for positions, found in (((300, 600), {300, 600}), ((300,), {300, 2047}), ((), {450, 2047})):
        engine = engine_of("slots", max_num_batched_tokens=256, max_model_len=2100, num_snapshot_slots=4)
        run(engine, request("before", [*prompt[:450], *[50] * 100], max_tokens=1))
        marks = tuple(CacheBreakpoint(position, 60) for position in positions)
        entry = run(engine, replace(request("long", prompt, max_tokens=1), cache_breakpoints=marks))["long"]
        assert entry.finals[0].kept_prefixes == marks
        nodes = engine._prefix_cache._tree.nodes()
        assert {snapshot.position for node in nodes for snapshot in node.snapshots.values()} & {
            300,
            450,
            600,
            2047,
        } == found
        check_tree(engine)
