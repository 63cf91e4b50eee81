"""Loading what turns text into tokens, in a thread of its own: a load reads the weights meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from inference.engine.prefix_cache.disk import DiskTier
from inference.engine.prefix_cache.model_key import model_key
from inference.errors import BlazrError, ModelLoadFailed
from inference.llm.options import LLMOptions
from inference.modelling.spec import Dtype, ModelSpec
from inference.text.tokenisation.chat_template import ChatTemplate
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec

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


_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_disk(spec: ModelSpec, weight_files: Sequence[Path], dtype: Dtype, options: LLMOptions) -> DiskTier | None:
    """The prefix cache's files of a checkpoint that is run so; None without a directory for them.

    Raises:
        InvalidRequest: The directory can't be used.
    """
    if options.cache_dir is None or not options.prefix_cache or not options.cache_dir_bytes:
        return None
    numbers = f"{dtype} {options.quant} {options.device_kind} {options.block_size}"
    key = model_key(spec, weight_files, numbers, memo_dir=options.cache_dir / "digests")
    return DiskTier(options.cache_dir, key, options.cache_dir_bytes)


def _check_device(options: LLMOptions) -> None:
    if options.device_kind != "cuda":
        return
    if not torch.cuda.is_available():
        raise ModelLoadFailed(f"device is {options.device}, but this machine has no CUDA device.", param="device")
    index = torch.device(options.device).index or 0
    if index >= torch.cuda.device_count():
        raise ModelLoadFailed(
            f"device is {options.device}, but this machine has {torch.cuda.device_count()} CUDA devices.",
            param="device",
        )


def _check_dtype(options: LLMOptions, dtype: Dtype) -> None:
    if options.device_kind != "cuda" or dtype != "bfloat16":
        return
    major, minor = torch.cuda.get_device_capability(torch.device(options.device))
    if major < 8:
        raise ModelLoadFailed(
            f"{options.device} has compute capability {major}.{minor}, bfloat16 needs 8.0; set the dtype to float16.",
            param="dtype",
        )
