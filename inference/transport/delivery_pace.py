"""When the deltas of a step go out: at once, or together with the next steps'.

What a token costs on its way (Redis, the web process, the client) hardly depends on how many tokens one delivery has,
and on a server that computes on its own processors the network waits meanwhile. So a worker with many streams whose
steps are short sends what several steps made in one piece. A first token, the end of a choice and everything that
isn't a delta is never kept, and neither is anything of a worker with few streams; they go out alone, and what other
requests have waiting goes on waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.values.messages import GenerationEvent

FIRST_TOKEN = 1
"""The index of a request's first token, behind its start."""
MIN_STREAMS = 8
"""Deltas of a step from which on they may wait; fewer streams cost little and are somebody's who looks at them."""
WAIT_PER_STREAM_S = 0.003
"""What each delta of a step adds to how long they may wait. On its way it takes 0.05 to 0.1 ms of processor time beside
a model that fills the caches, so deliveries take 2 to 3 % of one processor, however many streams they are for."""


class DeliveryPace:
    """Puts off a delivery while another step fits in between.

    Args:
        interval_s: Deltas wait until so long after the delivery before theirs at most, however many streams there are;
            0: they never wait.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._delivered_at = self._stepped_at = -1.0

    def keep_until(self, num_deltas: int, now: float) -> float:
        """How long the deltas of a step may wait.

        Args:
            num_deltas: Of one step, those that can wait.
            now: Seconds on the clock of all calls.

        Returns:
            When they have to go out at the latest; ``now``: they don't wait.
        """
        step_s, self._stepped_at = now - self._stepped_at, now
        until = self._delivered_at + min(self.interval_s, WAIT_PER_STREAM_S * num_deltas)
        return now if now + step_s > until or num_deltas < MIN_STREAMS else until

    def delivered(self, now: float) -> None:
        """Everything that waited up to here has gone out."""
        self._delivered_at = now


def can_wait(event: GenerationEvent) -> bool:
    """Whether nobody misses the event if it comes with those of the next steps."""
    return event["type"] == "delta" and event["index"] > FIRST_TOKEN and event.get("finish_reason") is None


def merge_deltas(events: Sequence[GenerationEvent]) -> list[GenerationEvent]:
    """The same events with one delta for those that follow each other within a choice.

    Args:
        events: Of any requests; those of one request in order.

    Returns:
        New events where some were merged, with ``span``: how many numbers they stand for.
    """
    runs: list[list[GenerationEvent]] = []
    last_of: dict[str, list[GenerationEvent]] = {}
    for event in events:
        run = last_of.get(event["request_id"])
        if run is not None and _continues(run[-1], event):
            run.append(event)
        else:
            run = last_of[event["request_id"]] = [event]
            runs.append(run)
    return [run[0] if len(run) == 1 else _joined(run) for run in runs]


def _continues(before: GenerationEvent, event: GenerationEvent) -> bool:
    return (
        before["type"] == event["type"] == "delta"
        and before["attempt"] == event["attempt"]
        and before.get("choice") == event.get("choice")
        and before.get("finish_reason") is None
        and "text" in before
        and "text" in event
    )


def _joined(run: Sequence[GenerationEvent]) -> GenerationEvent:
    joined: GenerationEvent = {**run[0], **run[-1], "index": run[0]["index"]}
    joined["text"] = "".join([event["text"] for event in run])
    joined["token_ids"] = [token_id for event in run for token_id in event.get("token_ids", ())]
    if any("logprobs" in event for event in run):
        joined["logprobs"] = [entry for event in run for entry in event.get("logprobs", ())]
    joined["span"] = sum(event.get("span", 1) for event in run)
    return joined
