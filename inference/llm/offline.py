"""OfflineRequests: generate, chat, embed and stream in the caller's thread, without a server."""

from __future__ import annotations

import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from inference.errors import BlazrError, GenerationFailed, InvalidRequest
from inference.llm.outputs import DeltaReader, OutputDelta, RequestOutput, request_output
from inference.llm.state_file import PromptState
from inference.llm.text_request import PreparedRequest
from inference.text.images.parts import with_read_images
from inference.text.tool_calls.resolution import resolve
from inference.text.vectors import Float32Array, output_vectors
from inference.values.chat_options import ChatOptions, ReasoningEffort, ToolChoice
from inference.values.messages import GenerateMessage, GenerationEvent, PromptMessage
from inference.values.output_builder import OutputBuilder
from inference.values.plan import EmbeddingOptions, GenerationPlan
from inference.values.sampling_params import SamplingParams
from inference.values.tokenizer_spec import TokenizerSpec

DEADLINE_S = 10 * 365 * 86_400.0
MAX_OPEN = 256
"""Most requests of one call that are in the engine; the others wait without their tokens."""
INPUTS_PER_MESSAGE = 64

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's dictionaries: ``{"prompt": …}`` or ``{"prompt_token_ids": …}``."""
AdapterName = str | None
"""Name of a LoRA adapter; None: the base alone."""


class OfflineRequests(ABC):
    """Requests that this thread runs to their end; not while a loop drives the model.

    Several may be open at a time: a batch may run while streams have more to come.
    """

    def __init__(self, tokenizer: TokenizerSpec) -> None:
        self._tokenizer_spec = tokenizer
        self._inboxes: dict[str, deque[GenerationEvent]] = {}

    @abstractmethod
    def prepare(self, message: GenerateMessage) -> PreparedRequest: ...

    @abstractmethod
    def prepare_after(self, state: PromptState, message: GenerateMessage) -> PreparedRequest: ...

    @abstractmethod
    def add(self, prepared: PreparedRequest) -> None: ...

    @abstractmethod
    def discard(self, request_id: str) -> None:
        """End a request, if it is here, and drop its events."""

    @abstractmethod
    def step(self) -> list[GenerationEvent]: ...

    @property
    @abstractmethod
    def step_tokens(self) -> int: ...

    # --- whole outputs -------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: AdapterName | Sequence[AdapterName] = None,
        state: PromptState | None = None,
        **prompt_options: Any,
    ) -> list[RequestOutput]:
        """Continue one prompt or many, which are computed together; returns an output each, in their order.

        Args:
            prompts: A text or token ids, or a list of such prompts.
            sampling_params: Of all prompts, or a list with those of each.
            adapter: Name of the adapter that all prompts go through, or a list with that of each.
            state: State that all of them go on from.
            prompt_options: Further members of a prompt: ``add_special_tokens``, ``parse_special``, ``suffix``.

        Raises:
            BlazrError: A prompt can't be served; then none has an output.
        """
        contents = [_content(prompt) | prompt_options for prompt in _as_list(prompts)]
        return self._whole(_plans(contents, sampling_params, "completion", adapter), state)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: AdapterName | Sequence[AdapterName] = None,
        state: PromptState | None = None,
        **chat_options: Any,
    ) -> list[RequestOutput]:
        """Write the next message of one conversation or of many; returns an output each, in their order.

        Args:
            messages: A conversation (a list of messages as OpenAI has them), or a list of conversations.
            sampling_params, adapter: As in ``generate``.
            state: State of messages that all conversations go on from.
            chat_options: ``tools``, ``tool_choice``, ``reasoning_effort``, ``chat_template_kwargs``,
                ``add_generation_prompt``, ``continue_final_message``.

        Raises:
            BlazrError: A conversation can't be served; then none has an output.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        chat, options = _chat_options(chat_options)
        contents = [_conversation(item) | options for item in cast("Sequence[Sequence[Message]]", conversations)]
        return self._whole(self._resolved(_plans(contents, sampling_params, "chat", adapter), chat), state)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        adapter: AdapterName = None,
        pooling: str | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
        truncate: bool = False,
    ) -> Float32Array:
        """Return a vector per prompt as (prompts, dimensions), float32.

        Args:
            prompts: A text or token ids, or a list of such prompts.
            adapter: Name of the adapter that all prompts go through.
            pooling: ``mean``, ``last`` or ``cls``; None: as the model is set.
            dimensions: So many of the first numbers are kept; None: all.
            normalize: Make their length 1.
            truncate: Cut prompts that are longer than the context, which are refused otherwise.

        Raises:
            BlazrError: A prompt can't be read, or the options don't fit the model.
        """
        inputs = [_content(prompt) | ({"truncate": True} if truncate else {}) for prompt in _as_list(prompts)]
        if not inputs:
            raise InvalidRequest("there are no prompts; give at least one.", param="prompts")
        groups = [inputs[first : first + INPUTS_PER_MESSAGE] for first in range(0, len(inputs), INPUTS_PER_MESSAGE)]
        plan = GenerationPlan(
            endpoint="embedding",
            model="",
            prompts=tuple(PromptMessage(inputs=cast("list[PromptMessage]", group)) for group in groups),
            params=SamplingParams(max_tokens=0, temperature=0.0),
            embedding=EmbeddingOptions(
                pooling=pooling, dimensions=dimensions, normalize=normalize, encoding_format="float"
            ),
            adapter=adapter or "",
        )
        builder = OutputBuilder(plan)
        for number, event in self._run_together([(plan, number, None) for number in range(len(groups))]):
            builder.add(number, event)
        return output_vectors(builder)

    def _whole(self, plans: list[GenerationPlan], state: PromptState | None) -> list[RequestOutput]:
        builders = [OutputBuilder(plan) for plan in plans]
        for number, event in self._run_together([(plan, 0, state) for plan in plans]):
            builders[number].add(0, event)
        return [request_output(builder, builder.prompts[0].prompt_text or None) for builder in builders]

    # --- streams -------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: AdapterName = None,
        state: PromptState | None = None,
        **options: Any,
    ) -> Iterator[OutputDelta]:
        """Yield the output as it is generated; closing the iterator ends the request.

        Args:
            prompt: A text or token ids, as for ``generate``, or one conversation, as for ``chat``.
            adapter: Name of the adapter that it goes through.
            options: As those methods take them.

        Raises:
            BlazrError: The prompt can't be served.
        """
        if _is_conversation(prompt):
            chat, kwargs = _chat_options(options)
            content = _conversation(cast("Sequence[Message]", prompt)) | kwargs
            (plan,) = self._resolved(_plans([content], sampling_params, "chat", adapter), chat)
        else:
            content = _content(cast("Prompt", prompt)) | options
            (plan,) = _plans([content], sampling_params, "completion", adapter)
        reader = DeltaReader(plan)
        for event in self._follow(self._prepared(_message(plan, 0), state)):
            if event["type"] == "error":
                raise BlazrError.from_dict(event["error"])
            yield from reader.deltas(event)

    def _resolved(self, plans: list[GenerationPlan], chat: ChatOptions) -> list[GenerationPlan]:
        return [resolve(replace(plan, chat=chat), self._tokenizer_spec) for plan in plans]

    # --- events --------------------------------------------------------------------------------

    def events(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        state: PromptState | None = None,
        **message_options: Any,
    ) -> Iterator[GenerationEvent]:
        """Yield the events of a request as a worker sends them; closing the iterator ends the request.

        Args:
            prompt: Text, token ids, or chat messages.
            params: Sampling parameters.
            state: State to go on from. A text or token ids follow its tokens, messages its messages.
            message_options: Further members of ``GenerateMessage`` (echo, …) or of its prompt (parse_special, …).

        Raises:
            BlazrError: The request can't be served.
        """
        message = _local_message(prompt, params or SamplingParams(), message_options)
        yield from self._follow(self._prepared(message, state))

    def save_state(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        *,
        state: PromptState | None = None,
        progress: Callable[[float], None] | None = None,
        **prompt_options: Any,
    ) -> PromptState:
        """Read a prompt and return the state after it.

        Args:
            prompt: Text, token ids, or chat messages (rendered without the beginning of an answer).
            state: State to go on from, as in ``events``.
            progress: Gets the share of the prompt that has been read (0 to 1).
            prompt_options: Further members of the prompt (parse_special, …).

        Raises:
            BlazrError: The prompt can't be read, or has fewer than two tokens.
        """
        options = {"add_generation_prompt": False, "saves_state": {}, **prompt_options}
        message = _local_message(prompt, SamplingParams(max_tokens=0, temperature=0.0), options)
        prepared = self._prepared(message, state)
        num_left = len(prepared.choices[0].prompt_token_ids) - (0 if state is None else len(state.state.token_ids))
        num_read = 0

        def report() -> None:
            nonlocal num_read
            num_read += self.step_tokens
            if progress is not None:
                progress(min(1.0, num_read / num_left))

        for event in self._follow(prepared, report):
            if event["type"] == "error":
                raise BlazrError.from_dict(event["error"])
            saved: PromptState | None = event.get("state")
        if saved is None:
            raise GenerationFailed("the prompt was read, but its state wasn't returned; try again.")
        if progress is not None:
            progress(1.0)  # what the prefix cache had wasn't read
        return saved

    # --- the engine ----------------------------------------------------------------------------

    def _prepared(self, message: GenerateMessage, state: PromptState | None) -> PreparedRequest:
        return self.prepare(message) if state is None else self.prepare_after(state, message)

    def _open(self, prepared: PreparedRequest) -> deque[GenerationEvent]:
        self.add(prepared)
        inbox = self._inboxes[prepared.request_id] = deque[GenerationEvent]()
        return inbox

    def _close(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)
        self.discard(request_id)

    def _step(self) -> None:
        """Compute once, and hand the events to their requests."""
        for event in self.step():
            inbox = self._inboxes.get(event["request_id"])
            if inbox is not None:
                inbox.append(event)

    def _follow(
        self, prepared: PreparedRequest, after_step: Callable[[], None] | None = None
    ) -> Iterator[GenerationEvent]:
        """Run one request to its end and yield its events; calls ``after_step`` after each step."""
        inbox = self._open(prepared)
        try:
            while True:
                while inbox:
                    event = inbox.popleft()
                    yield event
                    if _is_last(event):
                        return
                self._step()
                if after_step is not None:
                    after_step()
        finally:
            self._close(prepared.request_id)

    def _run_together(
        self, requests: Sequence[tuple[GenerationPlan, int, PromptState | None]]
    ) -> Iterator[tuple[int, GenerationEvent]]:
        """Run requests, each a plan with the number of its prompt, and yield their events with their numbers.

        Raises:
            BlazrError: One of them failed; the others are ended.
        """
        waiting = deque(enumerate(requests))
        inboxes: dict[str, tuple[int, deque[GenerationEvent]]] = {}
        number = 0
        try:
            while waiting or inboxes:
                while waiting and len(inboxes) < MAX_OPEN:
                    number, (plan, part, state) = waiting.popleft()
                    message = _message(plan, part)
                    inboxes[message["request_id"]] = number, self._open(self._prepared(message, state))
                for request_id, (number, inbox) in list(inboxes.items()):
                    while inbox:
                        event = inbox.popleft()
                        if event["type"] == "error":
                            raise BlazrError.from_dict(event["error"])
                        yield number, event
                        if _is_last(event):
                            del inboxes[request_id]
                            self._close(request_id)
                if inboxes:
                    self._step()
        except BlazrError as error:
            if len(requests) > 1:
                error.message = f"prompt {number}: {error.message}"
                error.args = (error.message,)
            raise
        finally:
            for request_id in inboxes:
                self._close(request_id)


def _is_last(event: GenerationEvent) -> bool:
    return event["type"] in ("done", "error")


def _message(plan: GenerationPlan, number: int) -> GenerateMessage:
    return plan.message(
        number, request_id=uuid.uuid4().hex, web_id="", checkpoint_id="", deadline=time.time() + DEADLINE_S
    )


def _plans(
    contents: Sequence[dict[str, Any]],
    params: SamplingParams | Sequence[SamplingParams] | None,
    endpoint: Any,
    adapter: AdapterName | Sequence[AdapterName],
) -> list[GenerationPlan]:
    """Make a plan for each prompt."""
    for content in contents:
        unknown = content.keys() - PromptMessage.__annotations__.keys()
        if unknown:
            raise InvalidRequest(f"{min(unknown)} is not an option of a prompt.", param=min(unknown))
    if not isinstance(params, Sequence):
        params = [params or SamplingParams()] * len(contents)
    if len(params) != len(contents):
        raise InvalidRequest(
            f"there are {len(params)} sampling parameters for {len(contents)} prompts; give one, or one for each.",
            param="sampling_params",
        )
    names = [adapter] * len(contents) if adapter is None or isinstance(adapter, str) else adapter
    if len(names) != len(contents):
        raise InvalidRequest(
            f"there are {len(names)} adapters for {len(contents)} prompts; give one, or one for each.", param="adapter"
        )
    return [
        GenerationPlan(
            endpoint=endpoint,
            model="",
            prompts=(cast("PromptMessage", content),),
            params=item if item.seed is not None else replace(item, seed=secrets.randbits(62)),
            echo="token_ids" not in content,
            return_token_ids=True,
            adapter=name or "",
        )
        for content, item, name in zip(contents, params, names, strict=True)
    ]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return a list of prompts; a text, a dictionary or token ids are one."""
    prompts = _plain(prompts)
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(_plain(prompts[0]), int)):
        return [cast("Prompt", prompts)]
    return cast("Sequence[Prompt]", prompts)


def _content(prompt: Prompt) -> dict[str, Any]:
    if isinstance(prompt, Mapping):
        others = prompt.keys() - {"prompt", "prompt_token_ids"}
        if unknown := sorted(str(name) for name in others if prompt[name] is not None):
            raise InvalidRequest(
                f"{unknown[0]} is not a member of a prompt; it has prompt or prompt_token_ids. Messages go to chat.",
                param="prompts",
            )
        if "prompt_token_ids" in prompt:
            return {"token_ids": _token_ids(prompt["prompt_token_ids"])}
        if "prompt" not in prompt:
            raise InvalidRequest("a prompt needs the member prompt or prompt_token_ids.", param="prompts")
        prompt = prompt["prompt"]
    return {"text": prompt} if isinstance(prompt, str) else {"token_ids": _token_ids(prompt)}


def _token_ids(prompt: Any) -> list[int]:
    token_ids = _plain(prompt)
    if not isinstance(token_ids, Sequence) or isinstance(token_ids, bytes):
        raise InvalidRequest(
            f"a prompt is a text, token ids or a dictionary, not {type(prompt).__name__}.", param="prompts"
        )
    return [_plain(token_id) for token_id in token_ids]


def _plain(value: Any) -> Any:
    """Return an array of NumPy or PyTorch as a list, a number of one as Python's, and anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_conversation(prompt: Any) -> bool:
    prompt = _plain(prompt)
    return not isinstance(prompt, str | Mapping) and bool(prompt) and isinstance(prompt[0], Mapping)


def _conversation(messages: Sequence[Message]) -> dict[str, Any]:
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"message {number} is no dictionary with a role and content.", param="messages")
    if not messages:
        raise InvalidRequest("the conversation has no messages; give at least one.", param="messages")
    return {"messages": with_read_images(messages)}


def _chat_options(options: dict[str, Any]) -> tuple[ChatOptions, dict[str, Any]]:
    """Divide the options of ``chat`` into what resolves the request, and members of the prompt."""
    rest = dict(options)
    tools: Sequence[dict[str, Any]] = rest.pop("tools", None) or ()
    choice: str | Mapping[str, Any] = rest.pop("tool_choice", None) or ("auto" if tools else "none")
    effort: ReasoningEffort | None = rest.pop("reasoning_effort", None)
    kwargs = rest.pop("chat_template_kwargs", None)
    try:
        names = [tool["function"]["name"] for tool in tools]
        name = None if isinstance(choice, str) else choice["function"]["name"]
    except (KeyError, TypeError):
        form = '{"type": "function", "function": {"name": …}}'
        raise InvalidRequest(f"a tool, or a tool_choice that is no word, isn't like {form}.", param="tools") from None
    words = ("none", "auto", "required") if tools else ("none", "auto")
    if (choice not in words) if name is None else (name not in names):
        known = ", ".join([*words, *names])[:300]
        raise InvalidRequest(f"tool_choice is {name or choice!r}; it must be one of {known}.", param="tool_choice")
    kind = cast("ToolChoice", choice if name is None else "named")
    chat = ChatOptions(tools=tuple(tools), tool_choice=kind, tool_name=name, reasoning_effort=effort)
    return chat, rest | ({"template_kwargs": dict(kwargs)} if kwargs else {})


def _local_message(
    prompt: str | Sequence[int] | Sequence[Message], params: SamplingParams, options: Mapping[str, Any]
) -> GenerateMessage:
    content: dict[str, Any]
    if isinstance(prompt, str):
        content = {"text": prompt}
    elif _is_conversation(prompt):
        content = {"messages": with_read_images(cast("Sequence[Message]", prompt))}
    else:
        content = {"token_ids": _token_ids(prompt)}
    of_prompt = PromptMessage.__annotations__
    content |= {name: value for name, value in options.items() if name in of_prompt}
    message: dict[str, Any] = {
        "request_id": uuid.uuid4().hex,
        "web_id": "",
        "attempt": 0,
        "model": "",
        "prompt": content,
        "params": params.to_dict(),
        "priority": 0,
        "deadline": time.time() + DEADLINE_S,
        **{name: value for name, value in options.items() if name not in of_prompt},
    }
    unknown = message.keys() - GenerateMessage.__annotations__.keys()
    if unknown:
        raise InvalidRequest(f"{min(unknown)} is not an option of a generation.", param=min(unknown))
    return cast("GenerateMessage", message)
