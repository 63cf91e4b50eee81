"""What is found again, and why not more: the engine around the fake network, whose tokens show any wrong state."""

from __future__ import annotations

import random

import pytest

from inference.engine.request import CacheBreakpoint, FinishReason
from inference.errors import InvalidRequest
from tests.inference.engine.fakes import (
    FakeNetwork,
    assert_all_free,
    collect,
    expected_tokens,
    make_engine,
    make_spec,
    request,
    run,
)

KINDS = ["paged", "slots", "hybrid"]


def engine_for(kind, **options):
    values = {"max_model_len": 2048, "num_blocks": 400, "block_size": 16, "max_num_batched_tokens": 512}
    return make_engine(kind, **(values | {"num_snapshot_slots": 32} | options))


def tokens_of(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(count)]


def ask(engine, prompt, name="r", *, salt="", **params):
    """One request, alone; (tokens, tokens found, reason). Its tokens are checked."""
    source = request(name, prompt, **({"max_tokens": 4} | params))
    entry = run(engine, with_salt(source, salt))[name]
    eos = source.eos_token_ids
    assert entry.tokens == expected_tokens(make_spec_of(engine), prompt, source.params.max_tokens, eos)
    return entry.tokens, entry.finals[0].num_cached_tokens, entry.finals[0].cache_miss_reason


def with_salt(source, salt):
    from dataclasses import replace

    return replace(source, cache_salt=salt)


def make_spec_of(engine):
    return engine._runner._network.spec


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_question_behind_the_same_long_prompt(kind):
    engine, prompt = engine_for(kind), tokens_of(0, 1000)
    assert ask(engine, prompt + tokens_of(1, 20), "a")[1:] == (0, "cold")
    _, cached, reason = ask(engine, prompt + tokens_of(2, 20), "b")
    assert cached >= 936 and reason in ("diverged", "no_snapshot")
    # The second one has marked the place where they part.
    assert ask(engine, prompt + tokens_of(3, 20), "c")[1:] == (1000, "diverged")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 5, 16, 17, 63, 64, 65, 300, 1000])
def test_the_same_prompt_again_computes_one_token(kind, length):
    engine, prompt = engine_for(kind), tokens_of(4, length)
    first = ask(engine, prompt, "a")
    computed = engine.stats().num_computed_tokens
    assert ask(engine, prompt, "b") == (first[0], length - 1, None)
    assert engine.stats().num_computed_tokens - computed == 1 + 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_of_five_turns(kind):
    engine, conversation = engine_for(kind), tokens_of(5, 200)
    earlier = 0
    for turn in range(5):
        answer, cached, _ = ask(engine, conversation, f"turn{turn}", max_tokens=30)
        if earlier:
            assert cached >= 0.95 * earlier, f"turn {turn}: {cached} of {earlier}"
        earlier = len(conversation) + len(answer)
        conversation = conversation + answer + tokens_of(100 + turn, 25)


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_prompts_have_nothing_to_reuse(kind):
    engine = engine_for(kind)
    assert ask(engine, [5], "a")[1:] == (0, None)
    assert ask(engine, [5], "b")[1:] == (0, None)
    stats = engine.stats().prefix_cache
    assert (stats.num_hits, stats.num_misses) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_salts_keep_prefixes_apart(kind):
    engine, prompt = engine_for(kind), tokens_of(6, 100)
    assert ask(engine, prompt, "a", salt="alice")[1:] == (0, "cold")
    assert ask(engine, prompt, "b", salt="bob")[1:] == (0, "cold")
    assert ask(engine, prompt, "c")[1:] == (0, "cold")
    assert ask(engine, prompt, "d", salt="alice")[1:] == (99, None)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_logprobs_need_all_rows_but_leave_their_state(kind):
    engine, prompt = engine_for(kind), tokens_of(7, 100)
    first = run(engine, request("a", prompt, prompt_logprobs=2, max_tokens=2))["a"]
    second = run(engine, request("b", prompt, prompt_logprobs=2, max_tokens=2))["b"]
    assert second.finals[0].cache_miss_reason == "needs_all_rows" and second.finals[0].num_cached_tokens == 0
    assert first.prompt_logprobs == second.prompt_logprobs
    assert ask(engine, prompt, "c")[1] == 99


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_cache_nothing_is_found(kind):
    engine, prompt = engine_for(kind, prefix_cache=False), tokens_of(8, 100)
    for name in "ab":
        assert ask(engine, prompt, name)[1:] == (0, "disabled")
    stats = engine.stats().prefix_cache
    assert stats.num_idle_blocks == stats.num_snapshots == 0
    assert dict(stats.misses) == {"disabled": 2}


def test_recurrent_state_without_room_for_snapshots_has_no_cache():
    engine, prompt = engine_for("hybrid", num_snapshot_slots=0), tokens_of(8, 100)
    assert ask(engine, prompt, "a")[1:] == ask(engine, prompt, "b")[1:] == (0, "disabled")


def test_an_evicted_prefix_says_so():
    engine = engine_for("paged", num_blocks=20, max_model_len=256)
    prompt = tokens_of(9, 200)
    ask(engine, prompt, "a")
    ask(engine, tokens_of(10, 250), "b")
    _, cached, reason = ask(engine, prompt, "c")
    assert cached < 199 and reason == "evicted"
    assert engine.stats().prefix_cache.num_evicted_blocks > 0


def test_an_evicted_snapshot_says_so():
    engine, prompt = engine_for("slots", num_snapshot_slots=2), tokens_of(11, 100)
    ask(engine, prompt, "a")
    for seed in range(3):
        ask(engine, tokens_of(20 + seed, 100), f"o{seed}")
    assert ask(engine, prompt, "c")[1:] == (0, "evicted")
    assert engine.stats().prefix_cache.num_evicted_snapshots > 0


def test_evicted_snapshots_move_to_host_memory():
    engine, prompt = engine_for("hybrid", num_snapshot_slots=2, snapshot_host_bytes=1 << 16), tokens_of(12, 100)
    ask(engine, prompt, "a")
    for seed in range(3):
        ask(engine, tokens_of(30 + seed, 100), f"o{seed}")
    assert ask(engine, prompt, "c")[1:] == (99, None)
    assert engine.stats().prefix_cache.host_bytes > 0


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_share_a_prefix_run_together(kind):
    engine, prompt = engine_for(kind), tokens_of(13, 100)
    ask(engine, prompt, "first")
    sources = [request(f"r{i}", prompt + tokens_of(40 + i, i), max_tokens=40) for i in range(8)]
    found = run(engine, *sources)
    for i, source in enumerate(sources):
        wanted = expected_tokens(make_spec_of(engine), source.prompt_token_ids, 40)
        assert found[f"r{i}"].tokens == wanted
        assert found[f"r{i}"].finals[0].num_cached_tokens >= 99


def test_shared_blocks_are_taken_once():
    """Eight requests of 12 blocks each fit 40 blocks, since they share ten."""
    engine, prompt = engine_for("paged", num_blocks=41, max_num_seqs=8), tokens_of(14, 161)
    ask(engine, prompt, "first")
    for i in range(8):
        engine.add_request(request(f"r{i}", prompt, max_tokens=20))
    engine.step()
    assert engine.stats().num_running == 8
    while engine.has_unfinished():
        engine.step()
    assert_all_free(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aborted_request_leaves_what_it_computed(kind):
    engine, prompt = engine_for(kind, max_num_batched_tokens=64), tokens_of(15, 300)
    engine.add_request(request("a", prompt, max_tokens=4))
    engine.step()
    engine.step()
    engine.abort_request("a")
    engine.step()
    assert ask(engine, prompt, "b")[1] == 128


@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_request_finds_its_own_state(kind):
    engine = engine_for(kind, num_blocks=27, max_model_len=400, num_state_slots=2, max_num_seqs=2)
    long = request("long", tokens_of(16, 200), priority=5, max_tokens=20)
    urgent = request("urgent", tokens_of(17, 240), priority=0, max_tokens=4)
    engine.add_request(long)
    found = {}
    for _ in range(6):
        collect(engine.step(), found)
    before = engine.stats().num_computed_tokens
    engine.add_request(urgent)
    while engine.has_unfinished():
        collect(engine.step(), found)
    spec = make_spec_of(engine)
    assert engine.stats().num_preemptions == 1
    assert found["long"].tokens == expected_tokens(spec, long.prompt_token_ids, 20)
    assert found["urgent"].tokens == expected_tokens(spec, urgent.prompt_token_ids, 4)
    assert found["long"].finals[0].num_cached_tokens == 0, "what it finds of its own isn't reported as found"
    again = engine.stats().num_computed_tokens - before - 243
    assert again < 220, "at least a part of it was still there"
    assert_all_free(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_attempt_finds_the_first_ones_output(kind):
    engine, prompt = engine_for(kind), tokens_of(18, 100)
    whole = expected_tokens(make_spec_of(engine), prompt, 30)
    run(engine, request("a", prompt, max_tokens=12))
    entry = run(engine, request("b", prompt, max_tokens=30, prior=whole[:12]))["b"]
    assert entry.tokens == whole[12:]
    assert entry.finals[0].num_cached_tokens == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_request_leaves_nothing(kind):
    spec = make_spec(kind)
    prompt = [*tokens_of(19, 60), 7]
    prompt[:60] = [token if token != 7 else 8 for token in prompt[:60]]
    network = FakeNetwork(spec, poison={7: float("nan")})
    engine = make_engine(network=network, max_model_len=256, num_blocks=100, num_snapshot_slots=8)
    for name in "ab":
        entry = run(engine, request(name, prompt, max_tokens=2))[name]
        assert entry.finish_reason is FinishReason.ERROR
        assert entry.finals[0].num_cached_tokens == 0
    stats = engine.stats().prefix_cache
    assert stats.num_idle_blocks == 0


def test_a_junction_saves_the_third_request():
    engine, shared = engine_for("hybrid"), tokens_of(21, 700)
    ask(engine, shared + tokens_of(22, 600), "a")
    _, second, reason = ask(engine, shared + tokens_of(23, 600), "b")
    assert second < 700 and reason == "no_snapshot"
    assert ask(engine, shared + tokens_of(24, 600), "c")[1:] == (700, "diverged")


@pytest.mark.parametrize("kind", ["slots", "hybrid"])
def test_a_short_question_behind_a_short_prompt(kind):
    engine, prompt = engine_for(kind), tokens_of(27, 100)
    found = [ask(engine, prompt + tokens_of(80 + i, 3), f"r{i}")[1:] for i in range(3)]
    assert found == [(0, "cold"), (0, "no_snapshot"), (100, "diverged")]


def test_counts_add_up():
    engine = engine_for("hybrid")
    prompts = [tokens_of(25, 80), tokens_of(26, 80), tokens_of(25, 80), [*tokens_of(25, 80), 3]]
    cached = [ask(engine, prompt, f"r{i}")[1] for i, prompt in enumerate(prompts)]
    stats = engine.stats().prefix_cache
    assert cached == [0, 0, 79, 79]
    assert (stats.num_hits, stats.num_misses, stats.num_cached_tokens) == (2, 2, 158)
    assert dict(stats.misses) == {"cold": 2} and sum(stats.shortfalls.values()) == 1


def test_negative_budgets_are_refused():
    with pytest.raises(InvalidRequest, match="num_snapshot_slots is -1, it must be at least 0"):
        engine_for("slots", num_snapshot_slots=-1)


# --- breakpoints -------------------------------------------------------------------------------


def ask_marked(engine, prompt, *breakpoints, name="marked"):
    from dataclasses import replace

    source = replace(request(name, prompt, max_tokens=4), cache_breakpoints=breakpoints)
    entry = run(engine, source)[name]
    assert entry.tokens == expected_tokens(make_spec_of(engine), prompt, 4, source.eos_token_ids)
    return entry.finals[0].num_cached_tokens, entry.finals[0].kept_prefixes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [16, 300, 500, 999])
def test_a_marked_prefix_outlives_others(kind, position):
    engine, prompt = engine_for(kind, num_blocks=200, num_snapshot_slots=6), tokens_of(0, 1000)
    kept = position if kind != "paged" else position // 16 * 16
    assert ask_marked(engine, prompt, CacheBreakpoint(position, 300)) == (0, (CacheBreakpoint(kept, 300),))
    for number in range(12):
        ask(engine, tokens_of(100 + number, 1000), f"other{number}")
    assert ask(engine, prompt[:position] + tokens_of(1, 20), "again")[1] >= kept
    assert_all_free(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_whose_time_is_over_is_evicted_as_others(kind):
    engine, prompt = engine_for(kind, num_blocks=200, num_snapshot_slots=6), tokens_of(0, 1000)
    ask_marked(engine, prompt, CacheBreakpoint(512, 0))
    for number in range(12):
        ask(engine, tokens_of(100 + number, 1000), f"other{number}")
    assert ask(engine, prompt[:512] + tokens_of(1, 20), "again")[1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_prefix_is_kept_again(kind):
    engine, prompt = engine_for(kind), tokens_of(0, 1000)
    mark = CacheBreakpoint(512, 300)
    ask_marked(engine, prompt, mark)
    found = ask_marked(engine, prompt[:512] + tokens_of(1, 100), mark, CacheBreakpoint(560, 3600), name="second")
    assert found == (512, (mark, CacheBreakpoint(560, 3600)))


@pytest.mark.parametrize("kind", ["slots", "hybrid"])
def test_a_prefix_is_kept_again_by_the_same_short_question(kind):
    """The request resumes in the block in which the prefix ends."""
    engine, prompt, mark = engine_for(kind), tokens_of(0, 414), CacheBreakpoint(402, 3600)
    found = [ask_marked(engine, prompt, mark, name=name) for name in ("first", "again", "once more")]
    assert found == [(0, (mark,)), (413, (mark,)), (413, (mark,))]


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_half_of_the_memory_is_kept(kind):
    engine = engine_for(kind, num_blocks=200, num_snapshot_slots=4)
    kept = [
        bool(ask_marked(engine, tokens_of(number, 800), CacheBreakpoint(640, 300), name=str(number))[1])
        for number in range(4)
    ]
    # 640 tokens are 40 of 200 blocks.
    assert kept == [True, True, False, False]
    assert_all_free(engine)


def test_nothing_is_kept_without_a_cache_or_a_slot():
    for options in ({"prefix_cache": False}, {"num_snapshot_slots": 0}):
        engine = engine_for("hybrid", **options)
        assert ask_marked(engine, tokens_of(0, 200), CacheBreakpoint(100, 300)) == (0, ())


def test_running_requests_take_kept_blocks_when_there_are_no_others():
    engine = engine_for("paged", num_blocks=64)
    ask_marked(engine, tokens_of(0, 400), CacheBreakpoint(400, 300))
    ask(engine, tokens_of(1, 1000), "long")
    assert_all_free(engine)


@pytest.mark.parametrize("salt", ["\0", "\ud800", "\udfff\n", "x" * 10_000, "\0".join("salt"), "\U0010ffff"])
def test_no_salt_ends_the_engine(salt):
    """CVE-2026-105756: the engine takes any text, whatever the API lets through."""
    engine, prompt = engine_for("paged"), tokens_of(6, 100)
    assert ask(engine, prompt, "a", salt=salt)[1:] == (0, "cold")
    assert ask(engine, prompt, "b", salt=salt)[1] == 99
    assert ask(engine, prompt, "c", salt=salt + "\0")[1:] == (0, "cold")
