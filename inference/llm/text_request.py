"""Turn a ``GenerateMessage`` into engine requests, outside the engine's thread: template, tokens, limits."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from inference.engine.adapter import Adapter
from inference.engine.pooling import POOLINGS, Pooling
from inference.engine.request import EngineRequest
from inference.errors import InvalidRequest, PromptTooLong, UnsupportedFeature
from inference.llm.adapters import AdapterRegistry, require_adapters
from inference.llm.conversation import ConversationReader
from inference.llm.pooled_output import PooledOutput
from inference.llm.prompt import Prompt
from inference.llm.prompt_images import PromptImages
from inference.llm.state_file import PromptState
from inference.llm.state_header import MAX_CONVERSATION_BYTES
from inference.llm.text_output import TextOutput
from inference.text.grammars.compiler import GrammarCompiler
from inference.text.grammars.constraint import GrammarConstraint
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.detokenizer import Detokenizer
from inference.text.tokenisation.infilling import InfillTokens, infill_tokens
from inference.text.tokenisation.sequence_breakers import TextBreakers
from inference.text.tokenisation.stop_strings import StopStrings
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.text.tool_calls.reasoning import ReasoningSection, ends_in_section
from inference.values.messages import GenerateMessage, PromptMessage
from inference.values.sampling_params import SEED_RANGE, SamplingParams

_serial = itertools.count()
_POOLING_PARAMS = SamplingParams(max_tokens=0, temperature=0.0)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that only needs the engine. Its ``output`` belongs to the engine's thread from ``LLM.add`` on.

    Attributes:
        request_id: The client's; each choice has an id of its own towards the engine.
        choices: One engine request per choice, or per input of a request for vectors.
        output: Makes the events; has taken in what an earlier attempt delivered.
        saved_prompt: The prompt after which the state is wanted; None: text or vectors are.
        state: The state that it goes on from, which is kept as long as the request runs: others find it in memory.
    """

    request_id: str
    choices: tuple[EngineRequest, ...]
    output: TextOutput | PooledOutput
    saved_prompt: Prompt | None = None
    state: PromptState | None = None


class RequestPreparer:
    """Prepares requests for one model; safe to call from several threads.

    Args:
        template: Its chat template; None: chat is refused.
        max_model_len: Most tokens of prompt and output.
        pooling: How vectors are pooled unless the request says.
        adapters: The LoRA adapters that requests may name; None: they can't.
        images: Reads the pictures of conversations; None: the model reads text only.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        max_model_len: int,
        grammars: GrammarCompiler,
        *,
        pooling: Pooling = "mean",
        adapters: AdapterRegistry | None = None,
        images: PromptImages | None = None,
    ) -> None:
        self._conversations = ConversationReader(tokenizer, template, max_model_len, images)
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._pooling = pooling
        self._adapters = adapters
        self._grammars = grammars
        self._infill: InfillTokens | None = None

    def prepare(self, message: GenerateMessage, state: PromptState | None = None) -> PreparedRequest:
        """Check a message and tokenise its prompt.

        Args:
            state: To go on from: a text or token ids, which may be empty, follow its tokens; messages its messages.

        Raises:
            InvalidRequest: What the message asks for can't be done; see the subclasses.
        """
        received_at = time.monotonic()
        if "pooling" in message:
            if state is not None:
                raise InvalidRequest("a vector can't go on from a saved state; leave the state out.", param="state")
            return self._prepare_pooling(message, received_at)
        params = self._sampling_params(message)
        prompt = self._read_prompt(message["prompt"], state)
        if is_saved := "saves_state" in message:
            _check_saved(prompt, params, state)
        self._check_length(len(prompt.token_ids), params, "messages" if "messages" in message["prompt"] else "prompt")
        prior = _prior_outputs(message, params.n)
        if not (is_first := not any(prior)):
            # The client has the start event of the earlier attempt, with all that is said about the prompt.
            params = replace(params, prompt_logprobs=None)
        reasoning = _reasoning(message, prompt)
        visible_ids = self._visible_ids(message)
        if params.grammar_after is not None and reasoning is not None and not reasoning.is_open:
            # A model that hasn't begun to think may never come to the end of it.
            params = replace(params, grammar_after=None)
        constraints = self._constraints(params, prior, visible_ids)
        breakers = self._dry_breakers(params)
        # A state is that before its last token, which is computed again when a request goes on from it.
        computed = prompt.token_ids[:-1] if is_saved else prompt.token_ids
        choices = tuple(
            replace(
                self._choice(message, number, computed, params, prior[number]),
                constraint=constraints[number],
                dry_breakers=breakers,
                saved_state=None if state is None else state.state,
                returns_state=is_saved,
                cache_breakpoints=prompt.breakpoints or (),
                images=prompt.images,
            )
            for number in range(params.n)
        )
        output = TextOutput(
            request_id=message["request_id"],
            attempt=message["attempt"],
            tokenizer=self._tokenizer,
            params=params,
            eos_token_ids=self._eos_token_ids(message["prompt"]),
            prompt_token_ids=prompt.token_ids,
            prompt_text=self._prompt_text(prompt, params) if is_first and message.get("echo", False) else None,
            return_prompt_token_ids=message.get("return_prompt_token_ids", False) and is_first,
            detokenizers=self._detokenizers(prompt.token_ids, params, visible_ids),
            reasoning=reasoning,
            prior=prior,
            received_at=received_at,
            has_marks=prompt.breakpoints is not None,
        )
        return PreparedRequest(message["request_id"], choices, output, prompt if is_saved else None, state)

    def _sampling_params(self, message: GenerateMessage) -> SamplingParams:
        params = SamplingParams.from_dict(message["params"])
        if params.stop and not self._tokenizer.has_text:
            raise UnsupportedFeature(
                "this checkpoint has no known tokenizer, so stop strings can't be found; use stop_token_ids.",
                param="stop",
            )
        return params

    def _prepare_pooling(self, message: GenerateMessage, received_at: float) -> PreparedRequest:
        pooling, adapter = message.get("pooling") or self._pooling, self._adapter(message)
        if pooling not in POOLINGS:
            raise InvalidRequest(f"pooling is {pooling!r}, it must be {', '.join(POOLINGS)}.", param="pooling")
        # A later attempt computes all inputs again: the vectors that the client has are dropped on their way.
        inputs = [self._read_input(number, item) for number, item in enumerate(message["prompt"]["inputs"])]
        choices = tuple(
            EngineRequest(
                request_id=f"{message['request_id']}.{number}.{next(_serial)}",
                prompt_token_ids=token_ids,
                params=_POOLING_PARAMS,
                priority=message["priority"],
                cache_salt=message.get("cache_salt", ""),
                adapter=adapter,
                pooling=pooling,
                caller=message.get("owner", ""),
            )
            for number, token_ids in enumerate(inputs)
        )
        output = PooledOutput(
            request_id=message["request_id"],
            attempt=message["attempt"],
            prompt_tokens=[len(token_ids) for token_ids in inputs],
            received_at=received_at,
        )
        return PreparedRequest(message["request_id"], choices, output)

    def _read_input(self, number: int, item: PromptMessage) -> tuple[int, ...]:
        limit = self._max_model_len
        longest = self._tokenizer.longest_token_bytes
        if item.get("truncate") and "text" in item and longest is not None:
            item = {**item, "text": item["text"][: longest * limit]}
        try:
            token_ids = self._read_prompt(item).token_ids
        except InvalidRequest as error:
            raise type(error)(f"input {number}: {error.message}", param="input") from error
        if len(token_ids) <= limit:
            return token_ids
        if item.get("truncate"):
            return token_ids[:limit]
        raise PromptTooLong.of(limit, len(token_ids), noun=f"input {number}", param="input")

    def _adapter(self, message: GenerateMessage) -> Adapter | None:
        name = message.get("adapter")
        if name is None:
            return None
        return require_adapters(self._adapters).get(name)

    def _choice(
        self,
        message: GenerateMessage,
        number: int,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        prior: tuple[int, ...],
    ) -> EngineRequest:
        seed = secrets.randbits(62) if params.seed is None else params.seed
        own = replace(
            params,
            n=1,
            seed=(seed + number + SEED_RANGE) % (2 * SEED_RANGE) - SEED_RANGE,
            prompt_logprobs=params.prompt_logprobs if number == 0 else None,
        )
        return EngineRequest(
            # The serial number keeps a late output of an aborted attempt apart from the next attempt's.
            request_id=f"{message['request_id']}.{number}.{next(_serial)}",
            prompt_token_ids=prompt_token_ids,
            params=own,
            eos_token_ids=self._eos_token_ids(message["prompt"]),
            priority=message["priority"],
            prior_output_token_ids=prior,
            cache_salt=message.get("cache_salt", ""),
            adapter=self._adapter(message),
            caller=message.get("owner", ""),
        )

    def _dry_breakers(self, params: SamplingParams) -> TextBreakers | None:
        if not params.dry_multiplier or not self._tokenizer.has_text:
            return None  # without text there are none to be found
        return TextBreakers(self._tokenizer, params.dry_sequence_breakers)

    def _constraints(
        self, params: SamplingParams, prior: Sequence[tuple[int, ...]], visible_ids: frozenset[int]
    ) -> Sequence[GrammarConstraint | None]:
        if params.grammar is None:
            return [None] * params.n
        eos = () if params.ignore_eos else self._tokenizer.eos_token_ids
        return self._grammars.constraints(
            params.grammar,
            prior,
            stop_ids=(*eos, *params.stop_token_ids),
            after=params.grammar_after,
            visible_ids=visible_ids,
        )

    def _visible_ids(self, message: GenerateMessage) -> frozenset[int]:
        """Control tokens whose text is part of the output."""
        special = self._tokenizer.special_tokens
        return frozenset(special[text] for text in message.get("visible_tokens", ()) if text in special)

    def _detokenizers(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, visible_ids: frozenset[int]
    ) -> list[Detokenizer]:
        tokenizer = self._tokenizer
        ignored = tokenizer.special_ids if params.skip_special_tokens else frozenset()
        at_start = all(token_id in ignored or tokenizer.is_missing(token_id) for token_id in prompt_token_ids)
        stop = StopStrings(params.stop) if params.stop else None
        return [
            Detokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                visible_ids=visible_ids,
                stop=stop,
                include_stop_str=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
                at_start=at_start,
            )
            for _ in range(params.n)
        ]

    def _read_prompt(self, prompt: PromptMessage, state: PromptState | None = None) -> Prompt:
        given = [name for name in ("text", "token_ids", "messages") if name in prompt]
        if len(given) != 1:
            raise InvalidRequest(
                f"a prompt is exactly one of text, token_ids and messages, got {' and '.join(given) or 'none'}.",
                param="prompt",
            )
        if state is not None:
            # Whoever wrote the file chose its tokens.
            self._tokenizer.check_token_ids(state.token_ids, param="state")
            found = self._read_continuation(prompt, state)
        elif "token_ids" in prompt:
            found = Prompt(self._tokenizer.check_token_ids(prompt["token_ids"]), None)
        elif "text" in prompt:
            found = self._read_text(prompt)
        else:
            found = self._conversations.read(prompt)
        if not found.token_ids:
            param = "messages" if "messages" in prompt else "prompt"
            raise InvalidRequest("the prompt is empty; give at least one token.", param=param)
        return found

    def _read_continuation(self, prompt: PromptMessage, state: PromptState) -> Prompt:
        """Read what follows a saved state's tokens or messages; nothing need follow its tokens."""
        if "messages" in prompt:
            return self._conversations.read(_following_messages(prompt, state))
        if "suffix" in prompt:
            raise InvalidRequest(
                "suffix fills a gap, which can't begin in a saved state; leave one of them out.", param="suffix"
            )
        if "token_ids" in prompt:
            following = Prompt(self._tokenizer.check_token_ids(prompt["token_ids"]), None)
        else:
            # The state's text has begun the sequence.
            following = self._read_text({**prompt, "add_special_tokens": False})
        token_ids = (*state.token_ids, *following.token_ids)
        return Prompt(token_ids, following.text, num_state_tokens=len(state.token_ids))

    def _read_text(self, prompt: PromptMessage) -> Prompt:
        text = prompt["text"]
        if not prompt.get("truncate"):
            parts = [part for part in (text, prompt.get("suffix")) if isinstance(part, str)]
            self._tokenizer.check_length(parts, self._max_model_len, "prompt")
        if "suffix" in prompt:
            return self._read_infill(prompt)
        token_ids = self._tokenizer.encode(
            text,
            add_special_tokens=prompt.get("add_special_tokens", True),
            parse_special=prompt.get("parse_special", False),
        )
        return Prompt(tuple(token_ids), text)

    def _read_infill(self, prompt: PromptMessage) -> Prompt:
        tokens = self._infill_tokens()
        text, parse_special = prompt["text"], prompt.get("parse_special", False)
        prefix, suffix = (
            self._tokenizer.encode(part, add_special_tokens=False, parse_special=parse_special, param=name)
            for name, part in (("prompt", text), ("suffix", prompt["suffix"]))
        )
        bos = self._tokenizer.bos_token_id if prompt.get("add_special_tokens", True) else None
        token_ids = tokens.prompt(prefix, suffix)
        return Prompt((*(() if bos is None else (bos,)), *token_ids), text)

    def _infill_tokens(self) -> InfillTokens:
        if self._infill is None:
            self._infill = infill_tokens(self._tokenizer)
        if self._infill is None:
            raise UnsupportedFeature(
                "suffix is not supported by this model: its vocabulary has no tokens for filling in the middle; "
                "leave it out.",
                param="suffix",
            )
        return self._infill

    def _eos_token_ids(self, prompt: PromptMessage) -> tuple[int, ...]:
        """Ids that end the answer; a text that fills a gap ends with one of its own convention, too."""
        known = self._tokenizer.eos_token_ids
        return known if "suffix" not in prompt else tuple(dict.fromkeys((*known, *self._infill_tokens().endings)))

    def _prompt_text(self, prompt: Prompt, params: SamplingParams) -> str:
        if prompt.text is not None:
            return prompt.text
        own = prompt.token_ids[prompt.num_state_tokens :]
        return self._tokenizer.decode(own, skip_special_tokens=params.skip_special_tokens)

    def _check_length(self, num_prompt: int, params: SamplingParams, noun: str) -> None:
        least = 1 if params.max_tokens is None else params.max_tokens
        if num_prompt + least > self._max_model_len:
            raise PromptTooLong.of(self._max_model_len, num_prompt, params.max_tokens, noun=noun)


def _check_saved(prompt: Prompt, params: SamplingParams, state: PromptState | None) -> None:
    """Refuse a prompt after which no state can be saved."""
    if prompt.images:
        raise UnsupportedFeature("a saved state holds no images; leave the images out.", param="messages")
    if params.n != 1:
        raise InvalidRequest(f"n is {params.n}; a prompt has one state, set it to 1.", param="n")
    if len(prompt.token_ids) < 2:
        raise InvalidRequest("the prompt has 1 token, a state needs at least 2; give a longer one.", param="prompt")
    if state is not None and prompt.token_ids == state.token_ids:
        raise InvalidRequest("nothing follows the state, so there is nothing to save; give a text.", param="prompt")
    if prompt.conversation is not None:
        size = len(orjson.dumps(prompt.conversation))
        if size > MAX_CONVERSATION_BYTES:
            raise InvalidRequest(
                f"the messages have {size:,} bytes of JSON, a state keeps at most {MAX_CONVERSATION_BYTES:,}; save the "
                "state of a text or of fewer messages.",
                param="messages",
            )


def _following_messages(prompt: PromptMessage, state: PromptState) -> PromptMessage:
    """The state's conversation with the messages of ``prompt`` behind its own."""
    if state.conversation is None:
        raise InvalidRequest(
            "the state was saved after a text, which messages can't follow; send a prompt (/v1/completions), or save "
            "the state of messages.",
            param="messages",
        )
    kwargs = {**state.conversation.get("template_kwargs", {}), **prompt.get("template_kwargs", {})}
    return {
        **prompt,
        "messages": [*state.conversation["messages"], *prompt["messages"]],
        "template_kwargs": kwargs,
    }


def _prior_outputs(message: GenerateMessage, num_choices: int) -> list[tuple[int, ...]]:
    """The tokens that earlier attempts have delivered, for each choice."""
    delivered = [tuple(token_ids) for token_ids in message.get("delivered", ())]
    if len(delivered) > num_choices:
        raise InvalidRequest(f"{len(delivered)} choices were delivered, n is {num_choices}.", param="delivered")
    return [*delivered, *((),) * (num_choices - len(delivered))]


def _reasoning(message: GenerateMessage, prompt: Prompt) -> ReasoningSection | None:
    """How the model's thinking is marked, if anybody wants to know."""
    tags = message.get("reasoning_tags")
    if tags is None:
        return None
    start, end = tags
    return ReasoningSection(start, end, ends_in_section(message["prompt"], prompt.text or "", start, end))
