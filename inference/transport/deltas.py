"""Join the deltas of one stream entry, so that a client gets one chunk per choice."""

from __future__ import annotations

from collections.abc import Sequence

from inference.values.messages import GenerationEvent

FIRST_TOKEN = 1
"""The index of a request's first token; index 0 is its start."""


def is_urgent(event: GenerationEvent) -> bool:
    """Whether a client waits for this event: a start, a first token, the end of a choice or of a request, an error."""
    return event["type"] != "delta" or event["index"] <= FIRST_TOKEN or event.get("finish_reason") is not None


def join_deltas(events: Sequence[GenerationEvent]) -> list[GenerationEvent]:
    """Return the events with consecutive deltas of one choice joined into one delta.

    Args:
        events: Events of any requests; the events of one request are in order.

    Returns:
        The events in order. A joined delta has ``span``, the number of indexes that it replaces.
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
