"""GenerationPlan: what one API request asks for, checked, before any model is looked up.

Views, the WebSocket consumer and the job runner all come from a request body to a plan through
``inference.dialects.openai.requests`` and go on from here, so that no path skips a check. Standard library only.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from inference.errors import UnsupportedFeature
from inference.values.chat_options import ChatOptions
from inference.values.messages import GenerateMessage, PromptMessage, StateOrder
from inference.values.output_format import REASONING_TAGS, OutputFormat
from inference.values.sampling_params import SamplingParams

Endpoint = Literal["completion", "chat", "embedding"]

INTERACTIVE_PRIORITY = 0
JOB_PRIORITY = 1000
"""Added to a job's own priority: whatever a client asks for, interactive requests go first."""


class EmbeddingOptions(TypedDict):
    """How vectors are made and shown."""

    pooling: str | None  # None: as the model is set
    dimensions: int | None  # so many of the first are kept; None: all
    normalize: bool
    encoding_format: str  # float or base64


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """One request body as plain values.

    Attributes:
        endpoint: Which of the two shapes the answer has.
        model: The served model name, as the client wrote it.
        prompts: One generation each; each gives ``params.n`` choices.
        params: Sampling parameters, seed included (chosen here when the client gave none).
        stream: Answer in chunks.
        include_usage: Streams end with a chunk that holds the usage.
        include_queue: A stream begins while the request waits, with events that say where it stands.
        echo: The text of an answer starts with the prompt (completions).
        priority: Lower goes first.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
        return_token_ids: Answers carry the ids of prompt and output.
        return_tokens_as_token_ids: Log-probabilities name a token ``token_id:N`` in place of its text.
        logprobs: Alternatives per position that the answer shows; None: no log-probabilities.
        keep: Choices per prompt that are shown, those of highest mean log-probability; None: all.
        keep_alive_s: How long the model stays without a request after this one; -1: for ever; None: as it is set.
        embedding: Set when pooled vectors are wanted; then the prompts are groups of inputs.
        chat: What a chat request says about tools and thinking.
        output: How to read the text, once the model is known; None: it is all content.
        state: Name of the saved state to go on from; ``state_file``, ``state_tokens``: digest of its file and number of
            its tokens, once it is looked up.
        adapter: Id of the LoRA adapter that the model's name means, once it is looked up; empty: none.
        saves_state: The state after the prompt is stored so, in place of an output.
    """

    endpoint: Endpoint
    model: str
    prompts: tuple[PromptMessage, ...]
    params: SamplingParams
    stream: bool = False
    include_usage: bool = False
    include_queue: bool = False
    echo: bool = False
    priority: int = INTERACTIVE_PRIORITY
    cache_salt: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    logprobs: int | None = None
    keep: int | None = None
    keep_alive_s: float | None = None
    embedding: EmbeddingOptions | None = None
    chat: ChatOptions | None = None
    output: OutputFormat | None = None
    state: str | None = None
    state_file: str | None = None
    state_tokens: int = 0
    saves_state: StateOrder | None = None
    adapter: str = ""

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def with_seed(self, seed: int | None = None) -> GenerationPlan:
        """The plan with a fixed seed: the client's own, else ``seed``, else a fresh one.

        A second attempt must draw the same tokens, so the seed is fixed before anything is sent.
        """
        if self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=secrets.randbits(62) if seed is None else seed))

    def without_limit(self) -> GenerationPlan:
        """The plan with as many tokens as the model's context leaves."""
        return replace(self, params=replace(self.params, max_tokens=None))

    def to_dict(self) -> dict[str, Any]:
        """A JSON form that ``from_dict`` reads; a queued job is stored as this."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            **values,
            "prompts": list(self.prompts),
            "params": self.params.to_dict(),
            "chat": None if self.chat is None else self.chat.to_dict(),
            "output": None if self.output is None else self.output.to_dict(),
        }

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> GenerationPlan:
        values = {item.name: payload[item.name] for item in fields(cls) if item.name in payload}
        values["prompts"] = tuple(values["prompts"])
        values["params"] = SamplingParams.from_dict(values["params"])
        if values.get("chat") is not None:
            values["chat"] = ChatOptions.from_dict(values["chat"])
        if values.get("output") is not None:
            values["output"] = OutputFormat.from_dict(values["output"])
        return cls(**values)

    def message(
        self,
        number: int,
        *,
        request_id: str,
        web_id: str,
        checkpoint_id: str,
        deadline: float,
        owner: str = "",
        attempt: int = 0,
        delivered: list[list[int]] | None = None,
    ) -> GenerateMessage:
        """The message of prompt ``number`` for a worker.

        Args:
            number: Index into ``prompts``. Choices of different prompts draw from different seeds.
            request_id: Unique among the requests in flight.
            web_id: Web process whose stream gets the events.
            checkpoint_id: Primary key of the checkpoint.
            deadline: Unix time after which nobody waits.
            owner: The caller's tenant, for lists of running requests; keeps the prefix caches of keys apart.
            attempt: 0, or higher when an earlier attempt died.
            delivered: Token ids per choice that earlier attempts delivered.
        """
        params = self.params
        if number and params.seed is not None:
            params = replace(params, seed=_wrapped(params.seed + number * params.n))
        message: GenerateMessage = {
            "request_id": request_id,
            "web_id": web_id,
            "attempt": attempt,
            "model": checkpoint_id,
            "prompt": self.prompts[number],
            "params": params.to_dict(),
            "priority": self.priority,
            "deadline": deadline,
        }
        if owner:
            message["owner"] = owner
        if self.echo:
            message["echo"] = True
        # Echoed log-probabilities name the prompt's first token too, which no logprob entry covers.
        if self.return_token_ids or (self.echo and self.logprobs is not None):
            message["return_prompt_token_ids"] = True
        if self.output is not None:
            message["visible_tokens"] = list(self.output.marks)
            if self.output.reasoning is not None:
                message["reasoning_tags"] = list(REASONING_TAGS[self.output.reasoning])
        tenant = owner if owner.startswith("key:") else ""
        if tenant or self.cache_salt:
            # The line break is there without a tenant, too: a salt that is a tenant's name must not reach its prefixes.
            message["cache_salt"] = f"{tenant}\n{self.cache_salt or ''}"
        if self.keep_alive_s is not None:
            message["keep_alive_s"] = self.keep_alive_s
        if delivered is not None:
            message["delivered"] = delivered
        self._add_results(message)
        return message

    def _add_results(self, message: GenerateMessage) -> None:
        if self.embedding is not None:
            message["pooling"] = self.embedding["pooling"]
        if self.state_file is not None:
            message["state"] = self.state_file
        elif self.state is not None:
            raise UnsupportedFeature("state names a state of a server, and there is none here.", param="state")
        if self.saves_state is not None:
            message["saves_state"] = self.saves_state
        if self.adapter:
            message["adapter"] = self.adapter


def _wrapped(seed: int) -> int:
    """``seed`` brought back into the signed 64-bit range that SamplingParams takes."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
