"""Loading what turns text into tokens, in a thread of its own: a load reads the weights meanwhile."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from inference.errors import BlazrError
from inference.tokenisation.chat_template import ChatTemplate
from inference.tokenisation.spec import TokenizerSpec
from inference.tokenisation.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

MAX_CHARS_PER_TOKEN = 32
"""A rendered conversation of more characters per token of context can't fit it."""


class TextLoading:
    """Tokenizer and chat template of a checkpoint on their way; begins at once.

    Args:
        spec: What inspection found.
        max_model_len: Most tokens of prompt and output.
    """

    def __init__(self, spec: TokenizerSpec, max_model_len: int) -> None:
        self._spec = spec
        self._max_model_len = max_model_len
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="load-text")
        self._loading = self._thread.submit(self._load)

    def check(self) -> None:
        """Raise what went wrong, if it has by now."""
        if self._loading.done():
            self._loading.result()

    def result(self) -> tuple[Tokenizer, ChatTemplate | None]:
        """Wait for both.

        Raises:
            CheckpointError: A file can't be used.
        """
        self._loading.result()
        self._thread.shutdown()
        assert self._tokenizer is not None
        return self._tokenizer, self._template

    def close(self) -> None:
        """Wait for the thread, and end the child processes of both."""
        self._thread.shutdown()
        if self._tokenizer is not None:
            self._tokenizer.close()
        if self._template is not None:
            self._template.close()

    def _load(self) -> None:
        self._tokenizer = load_tokenizer(self._spec)
        self._template = load_template(self._spec, self._tokenizer, self._max_model_len)


def load_template(spec: TokenizerSpec, tokenizer: Tokenizer, max_model_len: int) -> ChatTemplate | None:
    """The checkpoint's chat template with its child already started; None if there is none.

    A broken template is logged here and reported by every chat request; the model serves text all the same.
    """
    if spec.chat_template is None or not tokenizer.has_text:
        return None
    template = ChatTemplate(
        spec.chat_template,
        special_tokens=dict(spec.special_tokens),
        control_tokens=tokenizer.special_tokens,
        max_chars=MAX_CHARS_PER_TOKEN * max_model_len,
    )
    try:
        template.warm_up()
    except BlazrError as error:
        logger.warning("%s", error.message)
    return template
