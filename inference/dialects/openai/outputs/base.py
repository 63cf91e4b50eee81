"""What the shapes of all endpoints have in common: arranging what an ``OutputBuilder`` holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from inference.values.messages import GenerationEvent, LogprobEntry
from inference.values.output_builder import ChoiceState, OutputBuilder, PromptState
from inference.values.plan import GenerationPlan

Payload = dict[str, Any]


class OutputFormatter(Protocol):
    """Arranges events of one request in the shape of its endpoint."""

    def opening(self) -> Iterator[Payload]:
        """Chunks before the first token; called once, when every prompt has started."""

    def chunks(self, number: int, event: GenerationEvent) -> Iterator[Payload]:
        """Chunks for one event; the builder has it already."""

    def plain_text(self, number: int, event: GenerationEvent) -> str | None:
        """The text of an event that makes a chunk like all others but for its text; None for other events."""

    def usage_chunk(self) -> Payload:
        """The last chunk, when it was asked for."""

    def whole(self) -> Payload:
        """The response to a request that doesn't stream."""


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
            # OpenAI: every chunk has the member, null but for the last one.
            envelope["usage"] = None
        return envelope

    def plain_text(self, number: int, event: GenerationEvent) -> str | None:
        """The text of an event that makes a chunk like all others but for its text; None for other events."""
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
        """vLLM's form: per position token id → logprob, rank and text; null where nothing precedes."""
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
