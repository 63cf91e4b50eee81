"""Messages between the web process and the workers: one schema, JSON values only.

A generation travels as a ``GenerateMessage`` (JSON, ``inference.transport.open_requests``) and
comes back as events on the stream of the web process that asked. Every event names the request,
the attempt and a dense ``index`` from 0 per attempt (deltas that were merged take up ``span`` numbers);
exactly one of them is terminal (``done`` or ``error``).

    start    prompt accepted by the engine: prompt_tokens [, prompt_token_ids, prompt_logprobs, in_reasoning]; with
             prompt_logprobs it comes once they are computed, and accepted_ago_s tells when the prompt was accepted
    delta    text and tokens of one choice: choice, text, token_ids [, logprobs], [finish_reason, stop_reason];
             or the pooled vector of one input: choice (the input's number), embedding, finish_reason
    done     usage; the request is complete. In the worker's process also state, if one was wanted
    error    BlazrError.to_dict(); the request failed

Standard library only.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from inference.errors import BlazrError


class PromptMessage(TypedDict, total=False):
    """Exactly one of text, token_ids, messages; or inputs, for pooled vectors."""

    text: str
    token_ids: list[int]
    messages: list[dict[str, Any]]
    inputs: list[PromptMessage]  # each of text or token_ids; a request for pooled vectors has several in one message
    suffix: str  # with text: what is generated goes between the two; needs a vocabulary with tokens for that
    truncate: bool  # an input that is longer than the model's context is cut; default: refused
    template_kwargs: dict[str, Any]  # tools, documents, enable_thinking, …
    add_generation_prompt: bool  # default true
    continue_final_message: bool
    keep_tools_s: int  # with messages: keep the state before the first message that isn't the system's, in seconds
    add_special_tokens: bool  # text prompts: put BOS; default true
    parse_special: bool  # text prompts: control tokens written in the text become tokens; default false


class GenerateMessage(TypedDict):
    """One generation request for a worker.

    ``params`` is ``SamplingParams.to_dict()`` with the seed set by the web process, so that a second attempt
    draws the same tokens. ``delivered`` holds, per choice, the token ids that the client already has.
    """

    request_id: str
    web_id: str  # names the reply stream: out:<web_id>
    attempt: int
    model: str  # Checkpoint primary key
    prompt: PromptMessage
    params: dict[str, Any]
    priority: int
    deadline: float  # Unix time by Redis's clock, after which nobody waits
    echo: NotRequired[bool]
    return_prompt_token_ids: NotRequired[bool]
    cache_salt: NotRequired[str]
    delivered: NotRequired[list[list[int]]]
    alone_tokens: NotRequired[int]  # it runs alone in its worker until it has made so many new tokens, or ends
    visible_tokens: NotRequired[list[str]]  # control tokens whose text is kept
    reasoning_tags: NotRequired[list[str]]  # begin and end of a thinking section
    owner: NotRequired[str]  # the caller's tenant, for lists of running requests
    keep_alive_s: NotRequired[float]  # how long the model stays without a request from here on; -1: for ever
    traceparent: NotRequired[str]  # W3C trace context of the generation, when it is traced
    pooling: NotRequired[str | None]  # vectors are wanted, not text; None: pooled as the model is set
    adapter: NotRequired[str]  # LoRA adapter that the request goes through, a server's: its row's key
    state: NotRequired[str]  # SHA-256 of the saved state's file from which the request goes on
    saves_state: NotRequired[StateOrder]  # the state after the prompt is wanted, not text


class StateOrder(TypedDict):
    """Under which name a state is stored, and for how long."""

    name: str
    tenant: str
    model: str  # served name, for people
    is_pinned: bool
    expires_s: int | None  # None: the server's default
    replaces: bool  # takes the place of a state of that name; otherwise that is an error


class LogprobEntry(TypedDict):
    """One position. ``token`` is the token's text, ``bytes`` its bytes (a token may be part of a character)."""

    token_id: int
    token: str
    bytes: list[int]
    logprob: float
    top: list[dict[str, Any]]  # the same members without ``top``


class KeptPrefix(TypedDict):
    """The first tokens of a prompt whose state stays in the prefix cache, and for how many seconds."""

    tokens: int
    seconds: int


class UsageEvent(TypedDict):
    """Token counts and durations of one request."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: NotRequired[int]  # of the completion tokens; only with reasoning_tags
    cached_tokens: int
    cache_miss_reason: NotRequired[str | None]  # why not all of the prompt but its last token was cached
    kept_prefixes: NotRequired[list[KeptPrefix]]  # only of a prompt with marks (cache_control)
    queue_s: float  # from the message's preparation until the engine took the request
    slot_s: NotRequired[float]  # from there until its first step
    ttft_s: float
    duration_s: float
    waits: NotRequired[dict[str, float]]  # seconds in the worker before that: see ``ActiveRequest.waits``
    evicted: NotRequired[str]  # name of the model that was unloaded for it


class GenerationEvent(TypedDict):
    """One event; members beyond the first four depend on ``type`` as listed above."""

    request_id: str
    attempt: int
    index: int
    type: Literal["start", "delta", "done", "error"]
    span: NotRequired[int]  # numbers that a delta stands for, made of several; default 1
    prompt_tokens: NotRequired[int]
    prompt_token_ids: NotRequired[list[int]]
    prompt_text: NotRequired[str]  # echo
    in_reasoning: NotRequired[bool]  # the prompt ends inside a thinking section
    prompt_logprobs: NotRequired[list[LogprobEntry | None]]
    accepted_ago_s: NotRequired[float]  # seconds from the prompt's acceptance until its late start event; default 0
    choice: NotRequired[int]
    text: NotRequired[str]
    token_ids: NotRequired[list[int]]
    logprobs: NotRequired[list[LogprobEntry]]
    finish_reason: NotRequired[str | None]
    stop_reason: NotRequired[str | int | None]
    embedding: NotRequired[str]  # float32, little-endian, Base64
    usage: NotRequired[UsageEvent]
    state: NotRequired[Any]  # PromptState of inference.llm.state_file; taken off before the event leaves the process
    error: NotRequired[dict[str, Any]]


def error_event(request_id: str, attempt: int, index: int, error: BlazrError) -> GenerationEvent:
    """Return the event that ends a request with an error."""
    return {
        "request_id": request_id,
        "attempt": attempt,
        "index": index,
        "type": "error",
        "error": error.to_dict(),
    }
