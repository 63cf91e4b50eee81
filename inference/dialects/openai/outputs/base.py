"""Define the interface of response formats, and the base of formats of generated text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from inference.values.messages import GenerationEvent, LogprobEntry
from inference.values.output_builder import ChoiceState, OutputBuilder, PromptState
from inference.values.plan import GenerationPlan

Payload = dict[str, Any]


class OutputFormatter(Protocol):
    """Formats the output of one request in the shape of its endpoint."""

    def opening(self) -> Iterator[Payload]:
        """Yield the chunks before the first token; called once, when every prompt has started."""

    def chunks(self, number: int, event: GenerationEvent) -> Iterator[Payload]:
        """Yield the chunks of one event, which the builder has already taken."""

    def plain_text(self, number: int, event: GenerationEvent) -> str | None:
        """Return an event's text if its chunk differs from other chunks only by the text, else None."""

    def usage_chunk(self) -> Payload:
        """Return the last chunk, which holds the usage; sent only if requested."""

    def whole(self) -> Payload:
        """Return the whole response, for a request without streaming."""


@dataclass(slots=True)
class TextFormat:
    """Base of the formats of generated text."""

    plan: GenerationPlan
    builder: OutputBuilder
    request_id: str
    created: int
    model: str

    def _envelope(self, kind: str) -> Payload:
        envelope: Payload = {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [],
        }
        return envelope

    def _chunk_envelope(self, kind: str) -> Payload:
        envelope = self._envelope(kind)
        if self.plan.include_usage:
            # OpenAI: every chunk has the member, which is null in all but the last.
            envelope["usage"] = None
        return envelope

    def plain_text(self, number: int, event: GenerationEvent) -> str | None:
        """Return an event's text if its chunk differs from other chunks only by the text, else None."""
        if number or self.plan.return_token_ids or self.plan.logprobs is not None or self.plan.output is not None:
            return None
        if event["type"] != "delta" or event.get("choice") or event.get("finish_reason") is not None:
            return None
        return event.get("text", "")

    def _numbered_choices(self) -> Iterator[tuple[int, PromptState, ChoiceState]]:
        index = 0
        for prompt in self.builder.prompts:
            for choice in prompt.shown(self.plan.keep):
                yield index, prompt, choice
                index += 1

    def _token(self, entry: LogprobEntry | dict[str, Any]) -> str:
        if self.plan.return_tokens_as_token_ids:
            return f"token_id:{entry['token_id']}"
        return str(entry["token"])

    def _prompt_logprobs(self, prompt: PromptState) -> list[dict[str, Any] | None] | None:
        """Return vLLM's form: per position, token id → logprob, rank and text; null at the first position."""
        if prompt.prompt_logprobs is None:
            return None
        positions: list[dict[str, Any] | None] = []
        for entry in prompt.prompt_logprobs:
            if entry is None:
                positions.append(None)
                continue
            shown: dict[str, Any] = {
                str(entry["token_id"]): {"logprob": entry["logprob"], "rank": None, "decoded_token": entry["token"]}
            }
            for rank, other in enumerate(entry["top"], start=1):
                shown[str(other["token_id"])] = {
                    "logprob": other["logprob"],
                    "rank": rank,
                    "decoded_token": other["token"],
                }
            positions.append(shown)
        return positions

    @property
    def _shows_prompt_logprobs(self) -> bool:
        return self.plan.params.prompt_logprobs is not None and not (self.plan.echo and self.plan.logprobs is not None)
