"""ConversationReader: messages and their pictures to a prompt, by the checkpoint's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.engine.request import CacheBreakpoint
from inference.errors import PromptTooLong, UnsupportedFeature
from inference.llm.prompt import Prompt
from inference.llm.prompt_images import PromptImages
from inference.text.images.placing import PlacedTokens
from inference.text.tokenisation.chat_template import ChatTemplate, Piece
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.values.cache_control import marks_of, without_marks
from inference.values.images import images_of, no_images
from inference.values.messages import PromptMessage


class ConversationReader:
    """Reads conversations for one model; thread-safe.

    Args:
        template: Its chat template; None: conversations are refused.
        max_model_len: Most tokens of prompt and output.
        images: Reads pictures; None: the model reads text only.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, max_model_len: int, images: PromptImages | None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len
        self._images = images

    def read(self, prompt: PromptMessage) -> Prompt:
        """Render, tokenise and check a conversation.

        Raises:
            UnsupportedFeature: The checkpoint has no text, no template or no eyes for it.
            InvalidRequest: The messages can't be read, or are too long.
        """
        if not self._tokenizer.has_text:
            raise UnsupportedFeature(
                "this checkpoint has no known tokenizer, so messages can't be read; send the prompt as token ids.",
                param="messages",
            )
        if self._template is None:
            raise UnsupportedFeature(
                "this checkpoint has no chat template; send a text prompt to /v1/completions, or set a template.",
                param="messages",
            )
        continued = prompt.get("continue_final_message", False)
        options: dict[str, Any] = {
            "add_generation_prompt": prompt.get("add_generation_prompt", not continued),
            "continue_final_message": continued,
            "template_kwargs": prompt.get("template_kwargs"),
        }
        reader = self._images
        if reader is not None:
            options["images"] = reader.prompt
        elif images_of(prompt["messages"]):
            raise no_images("this model")
        counts = [] if reader is None else reader.count_tokens(prompt["messages"])
        pieces = self._template.render(prompt["messages"], **options)
        self._tokenizer.check_length([text for text, _ in pieces], self._max_model_len, "messages")
        # Templates write the beginning-of-sequence token themselves.
        token_ids = self._tokenizer.encode_pieces(pieces, max_tokens=self._max_model_len)
        breakpoints = self._breakpoints(prompt, options, token_ids)
        if reader is not None and counts:
            return self._with_images(reader, prompt, pieces, reader.place(token_ids, counts), breakpoints)
        messages = prompt["messages"] if breakpoints is None else without_marks(prompt["messages"])
        conversation: PromptMessage = {"messages": messages}
        if prompt.get("template_kwargs"):
            conversation["template_kwargs"] = prompt["template_kwargs"]
        return Prompt(tuple(token_ids), "".join(text for text, _ in pieces), conversation, breakpoints)

    def _with_images(
        self,
        reader: PromptImages,
        prompt: PromptMessage,
        pieces: Sequence[Piece],
        placed: PlacedTokens,
        breakpoints: tuple[CacheBreakpoint, ...] | None,
    ) -> Prompt:
        """The prompt of a conversation with pictures, which are decoded once it is known to fit."""
        if len(placed.token_ids) >= self._max_model_len:
            raise PromptTooLong.of(self._max_model_len, len(placed.token_ids), None, noun="messages")
        if breakpoints is not None:
            breakpoints = tuple(CacheBreakpoint(placed.moved(item.position), item.seconds) for item in breakpoints)
        text = "".join(text for text, _ in pieces)
        spans = reader.spans(prompt["messages"], placed)
        # A conversation with pictures isn't saved: a state holds none.
        return Prompt(tuple(placed.token_ids), text, None, breakpoints, images=spans)

    def _breakpoints(
        self, prompt: PromptMessage, options: dict[str, Any], token_ids: Sequence[int]
    ) -> tuple[CacheBreakpoint, ...] | None:
        """Return the positions of a conversation's marks: so far the prompt is what stands before the mark."""
        marks = marks_of(prompt["messages"], prompt.get("keep_tools_s"))
        if not marks:
            return None
        assert self._template is not None
        seconds: dict[int, int] = {}
        for mark, pieces in self._template.render_until(prompt["messages"], marks, **options):
            position = min(_num_equal(token_ids, self._tokenizer.encode_pieces(pieces)), len(token_ids) - 1)
            if position:
                seconds[position] = max(mark.seconds, seconds.get(position, 0))
        return tuple(CacheBreakpoint(position, seconds[position]) for position in sorted(seconds))


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many first items agree."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))
