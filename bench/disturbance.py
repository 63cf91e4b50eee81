"""Whether anything else computed during a measurement: a value that was taken beside other work is worth nothing.

Peers suffer differently from a core that is taken away for a moment: threads that spin at a barrier wait for the
one that was preempted, so a ratio taken on a busy machine can be wrong by a factor, in either direction.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLERATED_CPUS = 0.05
"""Processors' worth of other work that a value may have beside it: what the system itself needs now and then."""
SEEDS_APART = 10_000
"""Between the seeds of two attempts at one round."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Disturbed(Exception):
    """Something else computed; the text says how much and, as far as it is still there, what."""


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    busy_s: float
    processes: dict[int, float]


def undisturbed(
    own: Callable[[], Sequence[int]], measure: Callable[[], dict[str, Any]], *, attempts: int = 3
) -> tuple[dict[str, Any], float]:
    """Measure until nothing else computes meanwhile.

    Args:
        own: Processes that belong to the measurement.
        attempts: How often at most.

    Returns:
        The value, and the processors' worth of other work beside it.

    Raises:
        Disturbed: Each attempt had more than ``TOLERATED_CPUS`` beside it.
    """
    words = ""
    for _ in range(attempts):
        before = moment()
        value = measure()
        after = moment()
        mine = set(own()) | {os.getpid()}
        cpus, words = foreign_work(before, after, mine)
        if cpus <= TOLERATED_CPUS:
            return value, cpus
    raise Disturbed(f"{words} in the last of {attempts} attempts; stop other work and measure again")


def undisturbed_rounds(
    own: Callable[[], Sequence[int]], measure: Callable[[int], dict[str, Any]], seeds: Iterable[int]
) -> list[dict[str, Any]]:
    """What was measured in each round, without the rounds that other work disturbed.

    Args:
        measure: Takes the seed of its prompts. A repeated attempt gets another one of the same parity, because a
            prefix cache would answer a prompt that it has seen.
        seeds: One for each round, less than ``SEEDS_APART`` apart.
    """
    found = []
    for seed in seeds:
        attempts = itertools.count(seed, SEEDS_APART)
        with contextlib.suppress(Disturbed):
            found.append(undisturbed(own, lambda attempts=attempts: measure(next(attempts)))[0])  # type: ignore[misc]
    return found


def foreign_work(before: _Moment, after: _Moment, own: set[int]) -> tuple[float, str]:
    """Processors' worth of work that is not of ``own``, time stolen by the host included, and what to say of it."""
    elapsed = max(after.at - before.at, _TICK_S)
    used = {pid: seconds - before.processes.get(pid, 0.0) for pid, seconds in after.processes.items()}
    mine = sum(seconds for pid, seconds in used.items() if pid in own)
    # The kernel counts whole ticks; of a short measurement a few may fall on the wrong side.
    cpus = max(0.0, after.busy_s - before.busy_s - mine - 4 * _TICK_S) / elapsed
    others = sorted(((seconds, pid) for pid, seconds in used.items() if pid not in own and seconds > 0), reverse=True)
    named = f", most of it by {_name(others[0][1])}" if others else ""
    return cpus, f"other work took {cpus:.2f} processors{named}"


def moment() -> _Moment:
    """Processor time so far, of everything together and of each process."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            processes[int(entry.name)] = (int(fields[11]) + int(fields[12])) * _TICK_S
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return _Moment(time.perf_counter(), (user + nice + system + irq + soft + steal) * _TICK_S, processes)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process that has ended"


def family_of(pid: int) -> Callable[[], Sequence[int]]:
    return lambda: family(pid)


def family(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found
