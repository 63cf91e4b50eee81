"""TextOutput: turn engine outputs into the events of one request: text, log-probabilities, usage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.engine.request import CacheBreakpoint, EngineOutput, FinishReason, TokenLogprobs
from inference.errors import BlazrError, GenerationFailed
from inference.text.tokenisation.detokenizer import Detokenizer
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.text.tool_calls.reasoning import ReasoningCounter, ReasoningSection
from inference.values.messages import GenerationEvent, KeptPrefix, LogprobEntry
from inference.values.sampling_params import SamplingParams

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON can't say (OpenAI's value)."""


@dataclass(slots=True)
class _Choice:
    detokenizer: Detokenizer
    reasoning: ReasoningCounter | None
    num_tokens: int = 0
    has_new_tokens: bool = False
    is_finished: bool = False

    def push(self, token_id: int) -> str:
        """The text that a token makes certain."""
        text = self.detokenizer.push(token_id)
        if self.reasoning is not None:
            self.reasoning.push(text)
        return text


class TextOutput:
    """Makes the events of one request, numbered from 0, and exactly one terminal event.

    What an earlier attempt delivered is taken in at once, without events, so that the text goes on behind it.

    Args:
        tokenizer: Says what tokens mean.
        params: The client's, for all choices.
        eos_token_ids: End an answer by themselves, unless the client ignores them.
        prompt_token_ids: For the start event.
        prompt_text: Goes into the start event; None: doesn't.
        return_prompt_token_ids: Put the ids into the start event.
        detokenizers: One per choice, fresh.
        prior: Token ids per choice that the client has.
        reasoning: How thinking is marked; None: tokens of thinking aren't counted.
        received_at: ``time.monotonic()`` when the request came; durations count from there.
        has_marks: Whether the usage says which prefixes are kept.
    """

    def __init__(
        self,
        *,
        request_id: str,
        attempt: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        prompt_token_ids: Sequence[int],
        prompt_text: str | None,
        return_prompt_token_ids: bool,
        detokenizers: Sequence[Detokenizer],
        prior: Sequence[Sequence[int]],
        received_at: float,
        reasoning: ReasoningSection | None = None,
        has_marks: bool = False,
    ) -> None:
        self._request_id = request_id
        self._attempt = attempt
        self._tokenizer = tokenizer
        self._params = params
        self._prompt_token_ids = prompt_token_ids
        self._prompt_text = prompt_text
        self._return_prompt_token_ids = return_prompt_token_ids
        self._received_at = received_at
        self._added_at = received_at
        self._admitted_at = 0.0
        self._first_token_at: float | None = None
        self._cached_tokens = 0
        self._cache_miss_reason: str | None = None
        self._has_marks = has_marks
        self._kept_prefixes: tuple[CacheBreakpoint, ...] = ()
        self._next_index = 0
        self._is_started = False
        self._is_plain = False  # no more than text and tokens is wanted, and it has begun
        self._held: list[GenerationEvent] = []  # made before the start event could be
        self._reasoning = reasoning
        self._choices = [
            _Choice(detokenizer, None if reasoning is None else ReasoningCounter(reasoning))
            for detokenizer in detokenizers
        ]
        self.is_done = False
        eos = () if params.ignore_eos else eos_token_ids
        self._eos_token_ids = frozenset(eos)
        self._stop_token_ids = self._eos_token_ids | frozenset(params.stop_token_ids)
        for choice, token_ids in zip(self._choices, prior, strict=True):
            self._take_prior(choice, token_ids)

    def is_stopped(self, number: int) -> bool:
        """Whether the text of a choice has met a stop string, so that the engine isn't needed for it."""
        return self._choices[number].detokenizer.stop_reason is not None

    # --- events --------------------------------------------------------------------------------

    def begin(self) -> list[GenerationEvent]:
        """The engine has accepted the request: the start event (unless it waits for the prompt's
        log-probabilities), and the end of choices that an earlier attempt brought to a stop string."""
        self._added_at = time.monotonic()
        events = [] if self._params.prompt_logprobs is not None else self._start(None)
        for number, choice in enumerate(self._choices):
            if self.is_stopped(number):
                events += self._finish(number, "stop", choice.detokenizer.stop_reason)
        return events

    def accept(self, number: int, output: EngineOutput) -> list[GenerationEvent]:
        """Events for the news of a choice; one that fails ends the whole request.

        If this raises, it has made no events: ``fail`` can still be called, and its event has the next number.
        """
        choice = self._choices[number]
        if self.is_done or choice.is_finished:
            return []
        if self._is_plain and choice.has_new_tokens and output.finish_reason is None and len(output.new_token_ids) == 1:
            event = self._continue(number, choice, output.new_token_ids)  # almost always
            if event is not None:
                return [event]
        if output.finish_reason is FinishReason.ERROR:
            return self.fail(output.error or GenerationFailed("the request failed for an unknown reason."))
        next_index = self._next_index
        try:
            return self._read(number, output)
        except BaseException:
            self._next_index, self.is_done = next_index, False
            raise

    def fail(self, error: BlazrError) -> list[GenerationEvent]:
        if self.is_done:
            return []
        self.is_done = True
        self._is_started = True  # what was held back for the start is of no use now
        self._held.clear()
        return self._emit("error", {"error": error.to_dict()})

    def abort(self) -> list[GenerationEvent]:
        """End the request because nobody waits for it: open choices finish with ``abort``, usage is told."""
        events = [] if self._is_started else self._start(None)
        for number, choice in enumerate(self._choices):
            if not choice.is_finished:
                events += self._finish(number, str(FinishReason.ABORT), None)
        return events

    def _continue(self, number: int, choice: _Choice, token_ids: list[int]) -> GenerationEvent | None:
        """``_read`` of one more token of a choice that has some; None: nothing was done, it needs ``_read``."""
        text = choice.detokenizer.push_whole(token_ids[0])
        if text is None:
            return None
        choice.num_tokens += 1
        index = self._next_index
        self._next_index = index + 1
        return {
            "request_id": self._request_id,
            "attempt": self._attempt,
            "index": index,
            "type": "delta",
            "choice": number,
            "text": text,
            "token_ids": token_ids,
        }

    def _read(self, number: int, output: EngineOutput) -> list[GenerationEvent]:
        choice = self._choices[number]
        events: list[GenerationEvent] = []
        if number == 0:  # the others find what it has computed
            self._cached_tokens, self._cache_miss_reason = output.num_cached_tokens, output.cache_miss_reason
            self._admitted_at = output.admitted_at
            self._kept_prefixes = output.kept_prefixes
        if output.prompt_logprobs is not None:
            events += self._start(output.prompt_logprobs)
        text, count = self._take(choice, output)
        finish_reason = None if output.finish_reason is None else str(output.finish_reason)
        stop_reason: str | int | None = None
        if choice.detokenizer.stop_reason is not None:
            finish_reason, stop_reason = "stop", choice.detokenizer.stop_reason
        elif output.finish_reason is not None and output.stop_token_id not in self._eos_token_ids:
            stop_reason = output.stop_token_id
        if not output.new_token_ids and finish_reason is None:
            return events
        delta: dict[str, Any] = {"choice": number, "text": text, "token_ids": list(output.new_token_ids[:count])}
        if self._params.logprobs is not None:
            delta["logprobs"] = [self._entry(item) for item in (output.logprobs or ())[:count]]
        if finish_reason is not None:
            return events + self._finish(number, finish_reason, stop_reason, delta)
        return events + self._emit("delta", delta)

    def _start(self, prompt_logprobs: list[TokenLogprobs] | None) -> list[GenerationEvent]:
        if self._is_started:
            return []
        values: dict[str, Any] = {"prompt_tokens": len(self._prompt_token_ids)}
        if self._return_prompt_token_ids:
            values["prompt_token_ids"] = list(self._prompt_token_ids)
        if self._prompt_text is not None:
            values["prompt_text"] = self._prompt_text
        if self._reasoning is not None and self._reasoning.is_open:
            values["in_reasoning"] = True
        if self._params.prompt_logprobs is not None:
            values["accepted_ago_s"] = time.monotonic() - self._added_at
        if prompt_logprobs is not None:
            values["prompt_logprobs"] = [None, *(self._entry(item) for item in prompt_logprobs)]
        self._is_started = True
        self._is_plain = self._params.logprobs is None and self._reasoning is None
        held, self._held = self._held, []
        return self._emit("start", values) + [self._numbered(event) for event in held]

    def _finish(
        self, number: int, finish_reason: str, stop_reason: str | int | None, delta: dict[str, Any] | None = None
    ) -> list[GenerationEvent]:
        self._choices[number].is_finished = True
        values = delta or {"choice": number, "text": "", "token_ids": []}
        events = self._emit("delta", {**values, "finish_reason": finish_reason, "stop_reason": stop_reason})
        if all(choice.is_finished for choice in self._choices):
            self.is_done = True
            events += self._emit("done", {"usage": self._usage()})
        return events

    def _emit(self, kind: str, values: dict[str, Any]) -> list[GenerationEvent]:
        event: Any = {
            "request_id": self._request_id,
            "attempt": self._attempt,
            "index": self._next_index,
            "type": kind,
            **values,
        }
        if not self._is_started:
            self._held.append(event)  # gets its number when it is sent
            return []
        self._next_index += 1
        return [event]

    def _numbered(self, event: GenerationEvent) -> GenerationEvent:
        event["index"] = self._next_index
        self._next_index += 1
        return event

    # --- text and tokens -----------------------------------------------------------------------

    def _take_prior(self, choice: _Choice, token_ids: Sequence[int]) -> None:
        for position, token_id in enumerate(token_ids, start=1):
            is_end = position == len(token_ids) and token_id in self._stop_token_ids
            if not is_end or self._params.include_stop_str_in_output:
                choice.push(token_id)
        choice.num_tokens = len(token_ids)

    def _take(self, choice: _Choice, output: EngineOutput) -> tuple[str, int]:
        """Text of an output's tokens, and how many count: those behind a stop string were never asked for.

        A token that ends the sequence has no text.
        """
        token_ids = output.new_token_ids
        if token_ids and self._first_token_at is None:
            self._first_token_at = time.monotonic()
        if output.finish_reason is None and len(token_ids) == 1:  # almost always
            choice.num_tokens += 1
            choice.has_new_tokens = True
            return choice.push(token_ids[0]), 1
        ends_by_token = output.finish_reason is FinishReason.STOP and output.stop_token_id is not None
        hidden = 1 if ends_by_token and not self._params.include_stop_str_in_output else 0
        detokenizer = choice.detokenizer
        text, count = "", len(token_ids)
        for position, token_id in enumerate(token_ids[: len(token_ids) - hidden], start=1):
            text += choice.push(token_id)
            if detokenizer.stop_reason is not None:
                count = position
                break
        choice.num_tokens += count
        choice.has_new_tokens |= count > 0
        if output.finish_reason is None or output.finish_reason is FinishReason.ABORT:
            return text, count
        text += detokenizer.flush()  # may end with a stop string, too
        # Without a new token the earlier attempt ended this choice, and delivered all of its text.
        return (text if choice.has_new_tokens or not choice.num_tokens else ""), count

    def _entry(self, item: TokenLogprobs) -> LogprobEntry:
        return {
            **self._logprob(item.token_id, item.logprob),  # type: ignore[typeddict-item]
            "top": [self._logprob(token_id, logprob) for token_id, logprob in item.top],
        }

    def _logprob(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token_id": token_id,
            "token": data.decode("utf-8", "replace"),
            "bytes": list(data),
            "logprob": max(logprob, LOWEST_LOGPROB),
        }

    def _kept(self) -> list[KeptPrefix]:
        return [{"tokens": item.position, "seconds": item.seconds} for item in self._kept_prefixes]

    def _usage(self) -> dict[str, Any]:
        now = time.monotonic()
        first = now if self._first_token_at is None else self._first_token_at
        thinking = [choice.reasoning.num_tokens for choice in self._choices if choice.reasoning is not None]
        return {
            "prompt_tokens": len(self._prompt_token_ids),
            "completion_tokens": sum(choice.num_tokens for choice in self._choices),
            **({"reasoning_tokens": sum(thinking)} if thinking else {}),
            "cached_tokens": self._cached_tokens,
            "cache_miss_reason": self._cache_miss_reason,
            **({"kept_prefixes": self._kept()} if self._has_marks else {}),
            "queue_s": self._added_at - self._received_at,
            "slot_s": max(0.0, self._admitted_at - self._added_at),
            "ttft_s": first - self._received_at,
            "duration_s": now - self._received_at,
        }
