"""Format outputs as responses and chunks of /v1/completions.

https://platform.openai.com/docs/api-reference/completions/object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inference.dialects.openai.outputs.base import Payload, TextFormat
from inference.values.messages import GenerationEvent, LogprobEntry
from inference.values.output_builder import PromptState


@dataclass(slots=True)
class CompletionFormat(TextFormat):
    """Response format of /v1/completions; chunks have the object type of whole responses."""

    offsets: dict[int, int] = field(default_factory=dict)

    def opening(self) -> Iterator[Payload]:
        """Yield a chunk per choice with the echoed prompt or its log-probabilities, if requested."""
        for index, prompt, _ in self._numbered_choices():
            # The state of the log-probabilities comes with the start event, or with the first delta.
            choice = self._choice(index, prompt.prompt_text if self.plan.echo else "")
            if self.plan.return_token_ids:
                choice["prompt_token_ids"] = prompt.prompt_token_ids
                choice["token_ids"] = []
            if self._shows_prompt_logprobs:
                choice["prompt_logprobs"] = self._prompt_logprobs(prompt)
            if self.plan.echo and self.plan.logprobs is not None:
                choice["logprobs"] = self._logprobs(index, self._prompt_entries(prompt))
            if not self.plan.echo and set(choice) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}:
                continue
            chunk = self._chunk_envelope("text_completion")
            chunk["choices"] = [choice]
            yield chunk

    def chunks(self, number: int, event: GenerationEvent) -> Iterator[Payload]:
        if event["type"] != "delta":
            return
        index = number * self.plan.params.n + event.get("choice", 0)
        choice = self._choice(index, event.get("text", ""))
        if self.plan.logprobs is not None:
            choice["logprobs"] = self._logprobs(index, event.get("logprobs") or [])
        if self.plan.return_token_ids:
            choice["token_ids"] = event.get("token_ids", [])
        choice["finish_reason"] = event.get("finish_reason")
        choice["stop_reason"] = event.get("stop_reason")
        chunk = self._chunk_envelope("text_completion")
        chunk["choices"] = [choice]
        yield chunk

    def usage_chunk(self) -> Payload:
        return {**self._chunk_envelope("text_completion"), "usage": self.builder.usage()}

    def whole(self) -> Payload:
        response = self._envelope("text_completion")
        for index, prompt, state in self._numbered_choices():
            echoed = prompt.prompt_text if self.plan.echo else ""
            choice = self._choice(index, echoed + state.text)
            choice["finish_reason"], choice["stop_reason"] = state.finish_reason, state.stop_reason
            if self.plan.logprobs is not None:
                entries = self._prompt_entries(prompt) if self.plan.echo else []
                choice["logprobs"] = self._logprobs(index, [*entries, *state.logprobs])
            if self.plan.return_token_ids:
                choice["prompt_token_ids"], choice["token_ids"] = prompt.prompt_token_ids, state.token_ids
            if self._shows_prompt_logprobs:
                choice["prompt_logprobs"] = self._prompt_logprobs(prompt)
            response["choices"].append(choice)
        response["usage"] = self.builder.usage()
        return response

    @staticmethod
    def _choice(index: int, text: str) -> Payload:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}

    def _prompt_entries(self, prompt: PromptState) -> list[LogprobEntry | dict[str, Any] | None]:
        """Return the log-probability entries of the echoed prompt; the first entry has only its text.

        The engine has no entry for the first token. Its text is the part of the prompt before the other tokens' texts.
        """
        entries: list[LogprobEntry | dict[str, Any] | None] = list(prompt.prompt_logprobs or [])
        if entries and entries[0] is None:
            rest = b"".join(bytes(entry["bytes"]) for entry in entries[1:] if entry is not None)
            whole = prompt.prompt_text.encode()
            text = whole[: len(whole) - len(rest)] if whole.endswith(rest) else b""
            first_id = prompt.prompt_token_ids[0] if prompt.prompt_token_ids else -1
            entries[0] = {"token_id": first_id, "token": text.decode(errors="replace"), "bytes": list(text)}
        return entries

    def _logprobs(self, index: int, entries: list[Any]) -> Payload:
        """Return OpenAI's four parallel lists; ``text_offset`` counts characters from the start of the text."""
        offset = self.offsets.get(index, 0)
        tokens: list[str] = []
        token_logprobs: list[float | None] = []
        top_logprobs: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in entries:
            tokens.append(self._token(entry))
            offsets.append(offset)
            offset += len(entry["token"])
            if "logprob" not in entry:
                token_logprobs.append(None)
                top_logprobs.append(None)
                continue
            token_logprobs.append(entry["logprob"])
            shown = {self._token(other): other["logprob"] for other in entry["top"][: self.plan.logprobs]}
            shown.setdefault(self._token(entry), entry["logprob"])
            top_logprobs.append(shown)
        self.offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": offsets,
        }
