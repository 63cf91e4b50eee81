"""Faults inside an engine: no memory, exceptions, unusable logits, random schedules; loads and unloads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.engine_loads import MAX_GROWTH, WARM_UP, Loads, measure
from tests.faults.engine_schedules import Campaign, Figures
from tests.faults.site import ROOT

SHORT_OF_MEMORY = """
import resource
from tests.inference.engine.fakes import FakeNetwork, expected_tokens, make_engine, make_spec, request, run
import torch

PER_TOKEN = 1 << 20
class Large(FakeNetwork):
    def __call__(self, batch, states):
        torch.empty(batch.num_tokens * PER_TOKEN, dtype=torch.uint8)  # what a network's layers take for its rows
        return super().__call__(batch, states)

def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

torch.set_num_threads(1)
spec = make_spec("hybrid")
sizes = {"max_model_len": 256, "num_blocks": 600, "block_size": 4, "max_num_batched_tokens": 256}
requests = [request(f"r{i}", [(i + j) % 97 for j in range(60 + 30 * i)], max_tokens=8) for i in range(5)]
run(make_engine(network=Large(spec), **sizes), request("first", [1], max_tokens=2))
for megabytes in (100, 24):
    engine = make_engine(network=Large(spec), **sizes)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (megabytes << 20), resource.RLIM_INFINITY))
    found = run(engine, *requests)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    failed = []
    for source in requests:
        entry, wanted = found[source.request_id], expected_tokens(spec, source.prompt_token_ids, 8)
        if entry.finish_reason == "error":
            assert "ran out of memory" in entry.finals[0].error.message, entry.finals[0].error
            failed.append(source.request_id)
        assert entry.tokens == wanted[: len(entry.tokens)]
        assert entry.finish_reason == "error" or entry.tokens == wanted
    assert engine.stats().num_preemptions and requests[0].request_id not in failed
    print(megabytes, "MiB:", len(failed), "failed")
"""


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    """Networks with requests whose outputs alone are known."""
    return Campaign()


def check(figures: Figures, *, schedules: int, least: dict[str, int]) -> None:
    """Check that nothing changed and leaked, and that the schedules had in them what they are for."""
    assert figures.problems == []
    assert (figures.counts["schedules"], figures.counts["leaked"], figures.counts["changed"]) == (schedules, 0, 0)
    for name, count in least.items():
        assert figures.counts[name] >= count, (name, figures)


@pytest.mark.fault(
    "F25",
    provoked="60 random schedules of which one to five passes or heads fail with an allocator's error "
    "(`python -m tests.faults.engine_schedules --faults memory`: 10,000); an engine under RLIMIT_AS",
    holds="only a request that three steps of about one size had no memory for fails, and its error says so; the "
    "tokens of all others are those of their runs alone; blocks and slots are free",
)
def test_f25_a_step_without_memory_costs_the_newest_request_at_most(campaign):
    figures = campaign.run("memory", range(60))
    check(figures, schedules=60, least={"neighbours": 250, "preemptions": 100, "failed": 5})
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["100 MiB: 0 failed", "24 MiB: 0 failed"]


@pytest.mark.fault(
    "F31",
    provoked="60 random schedules in which a call of one request's grammar or sequence breakers raises: ValueError, "
    "RecursionError, MemoryError, a Rust panic, … (`--faults exception`: 10,000)",
    holds="this request fails; the tokens of all others are those of their runs alone; blocks and slots are free",
)
def test_f31_an_exception_in_one_row_ends_this_row_alone(campaign):
    figures = campaign.run("exception", range(60))
    check(figures, schedules=60, least={"neighbours": 250, "failed": 25})


@pytest.mark.fault(
    "F32",
    provoked="60 random schedules in which the logits behind one token, or all states behind it, are NaN or infinite "
    "(`--faults logits`: 10,000)",
    holds="a request ends with `numerical_error` in the step that computes such logits, and keeps the tokens before; "
    "the tokens of all others are those of their runs alone; blocks and slots are free",
)
def test_f32_unusable_logits_end_their_row_alone(campaign):
    figures = campaign.run("logits", range(60))
    check(figures, schedules=60, least={"neighbours": 250, "failed": 15})


@pytest.mark.parametrize("seed", [51001200, 55000400])
def test_a_prefix_in_a_chunk_with_unusable_rows_is_not_shared(seed):
    """Masked attention made the rows before an unusable one NaN; others found them in the prefix cache, and failed."""
    figures = Campaign(["attention"]).run("logits", range(seed, seed + 1))
    assert figures.problems == []
    assert figures.counts["neighbours"] >= 1 and figures.counts["failed"] >= 1


@pytest.mark.fault(
    "F34",
    provoked="20 loads and unloads of two models that don't fit together, with requests and cancels meanwhile, and "
    "orders to unload while prompts are computed (`python -m tests.faults.engine_loads`: 500 of them)",
    holds="every request gets the tokens of its own model; the memory grows by 5 % at most, threads and open files "
    "don't",
)
def test_f34_loads_and_unloads_mix_up_no_models_and_keep_no_memory(tmp_path):
    loads = Loads(tmp_path)
    try:
        for _ in range(WARM_UP):
            loads.cycle()
        before = measure()
        for _ in range(10):
            loads.cycle()
        after = measure()
    finally:
        loads.stop()
    assert loads.problems == []
    assert loads.num_loads >= 2 * (WARM_UP + 10)
    assert after.rss_bytes < (1 + MAX_GROWTH) * before.rss_bytes
    assert after.num_threads <= before.num_threads + 1  # one may be ending
    assert after.num_files <= before.num_files + 2


@pytest.mark.fault(
    "F35",
    provoked="200 random schedules: requests of several callers and priorities join, leave, are preempted, find "
    "prefixes and draft (`--faults none`: 10,000)",
    holds="each request gets the tokens, and the log-probabilities, that it gets alone; blocks and slots are free",
)
def test_f35_schedules_change_nothing(campaign):
    figures = campaign.run("none", range(200))
    check(figures, schedules=200, least={"neighbours": 1000, "preemptions": 100, "tokens found in the cache": 1000})
