"""PlainSteps: how long a step without guesses takes, by number of requests; what guesses are measured against."""

from __future__ import annotations

FIRST_SAMPLES = 6
"""Steps of a number of requests before any guess: the first ones of a size are slow (``decode_programs`` records them),
and guesses would look cheap beside them."""

NUM_SAMPLES = 5
REFRESH = 128
"""Steps with guesses after which the time of a plain step is measured again: contexts grow."""

REFRESH_SAMPLES = 2


class PlainSteps:
    """The time that all but the fastest of the last few took at least: hiccups of the machine don't count."""

    def __init__(self) -> None:
        self._samples: dict[int, list[float]] = {}
        self._due: dict[int, int] = {}
        self._age: dict[int, int] = {}

    def add(self, num_requests: int, seconds: float) -> None:
        """A step was measured."""
        samples = self._samples.setdefault(num_requests, [])
        samples.append(seconds)
        del samples[:-NUM_SAMPLES]
        self._due[num_requests] = max(0, self._due.get(num_requests, FIRST_SAMPLES) - 1)
        self._age[num_requests] = 0

    def seconds(self, num_requests: int) -> float | None:
        """None: not known well enough, a plain step is due."""
        if self._due.get(num_requests, FIRST_SAMPLES):
            return None
        samples = sorted(self._samples[num_requests])
        return samples[(len(samples) - 1) // 4]

    def grow_older(self, num_requests: int) -> None:
        """A step with guesses has passed."""
        self._age[num_requests] += 1
        if self._age[num_requests] >= REFRESH:
            self._samples[num_requests].clear()
            self._due[num_requests] = REFRESH_SAMPLES
