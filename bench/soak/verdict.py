"""What a soak found, and whether that is good enough. Decisions only: nothing is measured here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

MIN_REQUESTS = 20_000
"""Requests of a phase from which on its memory is judged. Before that, caches that have a bound still fill."""
MAX_GROWTH = 0.01
WINDOW = 0.1
"""Share of a phase whose samples are taken together, at the middle and at the end."""
MAX_SHOWN = 5

Sample = tuple[int, int]
"""(requests that had ended, bytes)."""


@dataclass
class Phase:
    """What happened in one phase.

    Attributes:
        num_requests: That ended, however they ended.
        num_cancelled: Whose client left early, as it was meant to.
        seconds: How long it took.
        failures: Requests that went wrong, as sentences.
        changed_repeats: Repeated greedy requests with another text than the first time, as sentences.
        deaths: Processes that ended, as sentences.
        memory: Samples of each process, in order.
    """

    name: str
    num_requests: int = 0
    num_cancelled: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    changed_repeats: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    memory: dict[str, list[Sample]] = field(default_factory=dict)


def growth(samples: list[Sample]) -> float | None:
    """Growth of a process's memory in the second half of a phase, as a share; None: too few samples to say."""
    if not samples:
        return None
    last = samples[-1][0]
    middle = [size for at, size in samples if abs(at - last / 2) <= last * WINDOW / 2]
    end = [size for at, size in samples if at >= last * (1 - WINDOW)]
    if not middle or not end or last == 0:
        return None
    return median(end) / median(middle) - 1


def problems(phases: list[Phase]) -> list[str]:
    """What makes a soak a failure, as sentences; none: it passed."""
    found = []
    for phase in phases:
        if phase.num_requests == 0:
            found.append(f"{phase.name}: no request ended")
        for what, sentences in (
            ("process ended", phase.deaths),
            ("request failed", phase.failures),
            ("repeat changed", phase.changed_repeats),
        ):
            # The same sentence a thousand times is one problem.
            counts = Counter(sentences)
            shown = [f"{count} times: {text}" if count > 1 else text for text, count in counts.most_common(MAX_SHOWN)]
            found += [f"{phase.name}: {what}: {text}" for text in shown]
            if len(counts) > MAX_SHOWN:
                found.append(f"{phase.name}: {what}: and {len(counts) - MAX_SHOWN} more kinds")
        found += [f"{phase.name}: {sentence}" for sentence in _growths(phase)]
    return found


def _growths(phase: Phase) -> list[str]:
    if phase.num_requests < MIN_REQUESTS:
        return []
    found = []
    for name, samples in phase.memory.items():
        share = growth(samples)
        if share is None:
            found.append(f"the memory of {name} was not measured")
        elif share > MAX_GROWTH:
            found.append(f"the memory of {name} grew by {share:.1%} in the second half; at most {MAX_GROWTH:.0%}")
    return found


def summary(phases: list[Phase]) -> dict[str, Any]:
    return {
        "passed": not problems(phases),
        "problems": problems(phases),
        "phases": {
            phase.name: {
                "num_requests": phase.num_requests,
                "num_cancelled": phase.num_cancelled,
                "seconds": round(phase.seconds, 1),
                "num_failures": len(phase.failures),
                "num_changed_repeats": len(phase.changed_repeats),
                "num_deaths": len(phase.deaths),
                "memory": {
                    name: {
                        "first_mib": round(samples[0][1] / 2**20, 1),
                        "last_mib": round(samples[-1][1] / 2**20, 1),
                        "most_mib": round(max(size for _, size in samples) / 2**20, 1),
                        "growth_second_half": growth(samples),
                    }
                    for name, samples in phase.memory.items()
                    if samples
                },
            }
            for phase in phases
        },
    }


def lines(phases: list[Phase]) -> list[str]:
    found = []
    for phase in phases:
        rate = phase.num_requests / phase.seconds if phase.seconds else 0.0
        found.append(
            f"{phase.name}: {phase.num_requests:,} requests in {phase.seconds:,.0f} s ({rate:,.0f} a second), "
            f"{phase.num_cancelled:,} cancelled, {len(phase.failures):,} failed"
        )
        for name, samples in phase.memory.items():
            share = growth(samples)
            if samples:
                text = "too short to say" if share is None else f"{share:+.2%} in the second half"
                judged = "" if phase.num_requests >= MIN_REQUESTS else f", not judged below {MIN_REQUESTS:,} requests"
                first, last = samples[0][1] / 2**20, samples[-1][1] / 2**20
                found.append(f"  memory of {name}: {first:,.1f} to {last:,.1f} MiB, {text}{judged}")
    return [*found, *(f"FAILED {problem}" for problem in problems(phases)), *([] if problems(phases) else ["passed"])]
