"""When a soak fails."""

from __future__ import annotations

import pytest

from bench.soak.verdict import MIN_REQUESTS, Phase, growth, lines, problems, summary

MIB = 1 << 20


def phase(sizes, *, num_requests=MIN_REQUESTS, **found):
    """A phase whose worker had these sizes, evenly spread over its requests."""
    samples = [(number * num_requests // (len(sizes) - 1), int(size * MIB)) for number, size in enumerate(sizes)]
    return Phase("unique", num_requests=num_requests, seconds=10.0, memory={"worker": samples}, **found)


def test_memory_that_grows_in_the_first_half_only_is_a_cache_that_fills():
    found = phase([100 + number for number in range(50)] + [150] * 51)
    assert growth(found.memory["worker"]) == pytest.approx(0.0, abs=0.005)
    assert problems([found]) == []


@pytest.mark.parametrize(("share", "fails"), [(0.0, False), (0.008, False), (0.02, True), (0.5, True)])
def test_memory_that_grows_in_the_second_half_fails_beyond_a_percent(share, fails):
    found = phase([100] * 51 + [100 + 100 * share * number / 45 for number in range(45)] + [100 * (1 + share)] * 5)
    assert bool(problems([found])) is fails


def test_a_single_sample_that_sticks_out_says_nothing():
    found = phase([100] * 100 + [180])
    assert problems([found]) == []


def test_memory_of_a_short_phase_is_shown_but_not_judged():
    found = phase([100 + number for number in range(101)], num_requests=MIN_REQUESTS - 1)
    assert problems([found]) == []
    assert any("memory of worker: 100.0 to 200.0 MiB" in line and "not judged" in line for line in lines([found]))
    assert summary([found])["phases"]["unique"]["memory"]["worker"]["growth_second_half"] > 0.2


def test_memory_that_could_not_be_measured_fails():
    assert growth([]) is None and growth([(0, 1), (100, 1)]) is None
    (problem,) = problems([Phase("mixed", num_requests=MIN_REQUESTS, memory={"web": []})])
    assert problem == "mixed: the memory of web was not measured"


@pytest.mark.parametrize("what", ["failures", "changed_repeats", "deaths"])
def test_each_thing_that_went_wrong_fails(what):
    found = phase([100] * 101, num_requests=100, **{what: ["/v1/completions: status 500"]})
    (problem,) = problems([found])
    assert "status 500" in problem and problem.startswith("unique: ")
    assert summary([found])["passed"] is False
    assert f"FAILED {problem}" in lines([found]) and "passed" not in lines([found])


def test_the_same_failure_a_thousand_times_is_one_line():
    failures = ["status 503"] * 1000 + [f"status {number}" for number in range(20)]
    found = problems([phase([100] * 101, failures=failures)])
    assert len(found) == 6 and "1000 times: status 503" in found[0] and "16 more kinds" in found[-1]


def test_a_phase_without_requests_fails():
    assert problems([Phase("unique")]) == ["unique: no request ended"]


def test_a_good_soak_passes():
    found = [phase([100] * 101), phase([100] * 101, num_requests=5)]
    assert problems(found) == [] and lines(found)[-1] == "passed" and summary(found)["passed"] is True
