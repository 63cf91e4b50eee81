"""Format outputs as responses and chunks of /v1/chat/completions.

https://platform.openai.com/docs/api-reference/chat/object and …/chat/streaming; ``token_ids``,
``prompt_token_ids``, ``prompt_logprobs`` and ``stop_reason`` are vLLM's additions, here and in completions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from inference.dialects.openai.outputs.base import Payload, TextFormat
from inference.dialects.openai.outputs.chat_deltas import chat_deltas, chat_message
from inference.text.tool_calls.parser import OutputParser, parse_output
from inference.values.messages import GenerationEvent, LogprobEntry


@dataclass(slots=True)
class ChatFormat(TextFormat):
    """Response format of /v1/chat/completions."""

    parsers: dict[int, OutputParser] = field(default_factory=dict)

    def opening(self) -> Iterator[Payload]:
        """Yield a chunk with the role for each choice."""
        for index, prompt, _ in self._numbered_choices():
            chunk = self._chunk_envelope("chat.completion.chunk")
            chunk["choices"] = [self._choice(index, {"role": "assistant", "content": ""})]
            if self.plan.return_token_ids and index == 0:
                chunk["prompt_token_ids"] = prompt.prompt_token_ids
            if self._shows_prompt_logprobs and index == 0:
                chunk["prompt_logprobs"] = self._prompt_logprobs(prompt)
            yield chunk

    def chunks(self, number: int, event: GenerationEvent) -> Iterator[Payload]:
        """Yield one chunk per delta; the finish reason has a chunk of its own, with an empty delta.

        The first chunk of an event carries the event's tokens. Text may be held back, tokens are not.
        """
        if event["type"] != "delta":
            return
        index = number * self.plan.params.n + event.get("choice", 0)
        token_ids, entries = event.get("token_ids", []), event.get("logprobs") or []
        finish_reason = event.get("finish_reason")
        shows_tokens = (self.plan.return_token_ids and token_ids) or (self.plan.logprobs is not None and entries)
        deltas = self._deltas(index, event)
        if not deltas and shows_tokens:
            deltas = [{"content": ""}]
        for position, delta in enumerate(deltas):
            choice = self._choice(index, delta)
            if self.plan.logprobs is not None:
                choice["logprobs"] = self._logprobs([] if position else entries)
            if self.plan.return_token_ids:
                choice["token_ids"] = [] if position else token_ids
            chunk = self._chunk_envelope("chat.completion.chunk")
            chunk["choices"] = [choice]
            yield chunk
        if finish_reason is not None:
            choice = self._choice(index, {})
            parser = self.parsers.get(index)
            choice["finish_reason"] = _finish_reason(finish_reason, 0 if parser is None else parser.num_calls)
            choice["stop_reason"] = event.get("stop_reason")
            chunk = self._chunk_envelope("chat.completion.chunk")
            chunk["choices"] = [choice]
            yield chunk

    def usage_chunk(self) -> Payload:
        return {**self._chunk_envelope("chat.completion.chunk"), "usage": self.builder.usage()}

    def whole(self) -> Payload:
        response = self._envelope("chat.completion")
        for index, prompt, state in self._numbered_choices():
            message = parse_output(self.plan.output, state.text, in_reasoning=prompt.in_reasoning)
            choice: Payload = {
                "index": index,
                "message": chat_message(message),
                "logprobs": self._logprobs(state.logprobs) if self.plan.logprobs is not None else None,
                "finish_reason": _finish_reason(state.finish_reason, len(message.tool_calls)),
                "stop_reason": state.stop_reason,
            }
            if self.plan.return_token_ids:
                choice["token_ids"] = state.token_ids
            response["choices"].append(choice)
        prompt = self.builder.prompts[0]
        if self.plan.return_token_ids:
            response["prompt_token_ids"] = prompt.prompt_token_ids
        if self._shows_prompt_logprobs:
            response["prompt_logprobs"] = self._prompt_logprobs(prompt)
        response["usage"] = self.builder.usage()
        return response

    def _deltas(self, index: int, event: GenerationEvent) -> list[Payload]:
        """Return the deltas that an event adds to the message of choice ``index``."""
        text, is_last = event.get("text", ""), event.get("finish_reason") is not None
        if self.plan.output is None:
            return [{"content": text}] if text or not is_last else []
        parser = self.parsers.get(index)
        if parser is None:
            in_reasoning = self.builder.prompts[index // self.plan.params.n].in_reasoning
            parser = self.parsers[index] = OutputParser(self.plan.output, in_reasoning=in_reasoning)
        return chat_deltas(parser.push(text) + (parser.finish() if is_last else []))

    @staticmethod
    def _choice(index: int, delta: Payload) -> Payload:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, entries: list[LogprobEntry]) -> Payload:
        content = [
            {
                "token": self._token(entry),
                "logprob": entry["logprob"],
                "bytes": entry["bytes"],
                "top_logprobs": [
                    {"token": self._token(other), "logprob": other["logprob"], "bytes": other["bytes"]}
                    for other in entry["top"][: self.plan.logprobs]
                ],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def _finish_reason(reason: str | None, num_calls: int) -> str | None:
    """Return OpenAI's finish reason, which is tool_calls for an output that ends with calls."""
    return "tool_calls" if reason == "stop" and num_calls else reason
