"""Keep tokenizers loaded in the web process, for /tokenize, /detokenize and token counts.

Threads run them. The workers tokenise the prompts of generations.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeVar

from channels.db import database_sync_to_async

from inference.errors import UnsupportedFeature
from inference.host.fair_threads import FairThreads
from inference.serving.image_parts import names_image_files, prompt_with_images
from inference.serving.served_models import plan_for_model, served_model_get
from inference.text.images.placing import ImagePlacing
from inference.text.tokenisation.chat_template import ChatTemplate, Piece
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.images import placed_images
from inference.values.messages import PromptMessage
from inference.values.plan import GenerationPlan
from inference.values.principal import principal_current
from inference.values.served_model import ServedModel

Result = TypeVar("Result")

MAX_LOADED = 4
NUM_THREADS = 2
MAX_WAITING = 64
MAX_WAITING_EACH = 32
"""Most calls that wait for a thread: of all callers, and of one."""
WAIT_S = 20.0


class ModelText:
    """One model's tokenizer and template."""

    def __init__(self, served: ServedModel) -> None:
        self.tokenizer: Tokenizer = load_tokenizer(served.tokenizer)
        self.template: ChatTemplate | None = None
        if served.tokenizer.chat_template is not None:
            self.template = ChatTemplate(
                served.tokenizer.chat_template,
                special_tokens=dict(served.tokenizer.special_tokens),
                control_tokens=self.tokenizer.special_tokens,
                max_model_len=served.max_model_len,
            )
        self._images = None if served.images is None else ImagePlacing(self.tokenizer, served.images)
        self._name = served.name
        self._users = 0
        self._is_evicted = False

    def token_ids(self, prompt: PromptMessage, *, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text or a conversation.

        Raises:
            InvalidRequest: The text or the messages can't be read.
            UnsupportedFeature: The model has no template.
        """
        add_special_tokens = prompt.get("add_special_tokens", True)
        if "messages" not in prompt:
            return self.tokenizer.encode(
                prompt["text"], add_special_tokens=add_special_tokens, parse_special=parse_special
            )
        token_ids = self.tokenizer.encode_pieces(self._render(prompt), add_special_tokens=add_special_tokens)
        images = list(placed_images(prompt["messages"]))
        if not images or self._images is None:
            return token_ids
        self._images.check()
        counts = [self._images.count(part, where) for where, part in images]
        return self._images.place(token_ids, counts).token_ids

    def prompt_text(self, prompt: PromptMessage) -> str:
        """Render a conversation with the model's template.

        Raises:
            InvalidRequest: The messages can't be read.
            UnsupportedFeature: The model has no template.
        """
        return "".join(text for text, _ in self._render(prompt))

    def _render(self, prompt: PromptMessage) -> list[Piece]:
        if self.template is None:
            raise UnsupportedFeature(f"The model {self._name!r} has no chat template; send text.", param="messages")
        return self.template.render(
            prompt["messages"],
            add_generation_prompt=prompt.get("add_generation_prompt", True),
            continue_final_message=prompt.get("continue_final_message", False),
            template_kwargs=prompt.get("template_kwargs"),
            images=None if self._images is None else self._images.images.prompt,
        )

    def acquire(self) -> None:
        """Count one more user; called under the cache's lock."""
        self._users += 1

    def release(self) -> None:
        """Count one user less; called under the cache's lock."""
        self._users -= 1
        self._close_if_unused()

    def evict(self) -> None:
        """Close the tokenizer when its last user has released it; called under the cache's lock."""
        self._is_evicted = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_evicted and self._users == 0:
            self.tokenizer.close()
            if self.template is not None:
                self.template.close()


class TokenizerCache:
    """The most recently used tokenizers, and the threads that use them."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[tuple[str, str], ModelText] = OrderedDict()
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()
        self._threads = FairThreads(
            NUM_THREADS, "texts", max_waiting=MAX_WAITING, max_waiting_each=MAX_WAITING_EACH, timeout_s=WAIT_S
        )

    async def run(self, served: ServedModel, work: Callable[[ModelText], Result]) -> Result:
        """Run ``work`` with the model's tokenizer in a thread; callers take turns.

        Raises:
            QueueFull: Too many calls wait, or this one has waited for too long.
            CheckpointError: The tokenizer can't be loaded.
        """
        return await self._threads.run(principal_current().tenant, lambda: self._work(served, work))

    def _work(self, served: ServedModel, work: Callable[[ModelText], Result]) -> Result:
        with self.borrowed(served) as text:
            return work(text)

    @contextlib.contextmanager
    def borrowed(self, served: ServedModel) -> Iterator[ModelText]:
        """Lend a model's tokenizer to the caller's own thread.

        Raises:
            CheckpointError: The tokenizer can't be loaded.
        """
        key = (served.checkpoint_id, served.version)
        with self._lock:
            text = self._loaded.get(key)
            if text is not None:
                text.acquire()
                self._loaded.move_to_end(key)
        if text is None:
            text = self._load(key, served)
        try:
            yield text
        finally:
            with self._lock:
                text.release()

    def _load(self, key: tuple[str, str], served: ServedModel) -> ModelText:
        with self._load_lock:
            with self._lock:
                text = self._loaded.get(key)
                if text is not None:  # another thread was faster
                    text.acquire()
                    return text
            text = ModelText(served)
            with self._lock:
                text.acquire()
                # Evict older versions of the same checkpoint first, then the least recently used tokenizers.
                stale = [other for other in self._loaded if other[0] == key[0]]
                self._loaded[key] = text
                while len(self._loaded) - len(stale) > MAX_LOADED:
                    oldest = next(other for other in self._loaded if other not in stale)
                    stale.append(oldest)
                for other in stale:
                    self._loaded.pop(other).evict()
            return text


_cache: TokenizerCache | None = None


def tokenizer_cache() -> TokenizerCache:
    """Return the tokenizer cache of this process."""
    global _cache
    if _cache is None:
        _cache = TokenizerCache()
    return _cache


async def prompt_with_files(prompt: PromptMessage, served: ServedModel) -> PromptMessage:
    """Return a prompt with the bytes of the caller's stored files that its conversation names as pictures.

    Raises:
        NotFound, InvalidRequest: As ``plan_with_images`` raises.
    """
    if not names_image_files((prompt,)):
        return prompt
    whole: PromptMessage = await database_sync_to_async(prompt_with_images)(prompt, served, principal_current().tenant)
    return whole


async def prompt_tokens(plan: GenerationPlan) -> tuple[int, int]:
    """Count the tokens of a chat request without generating.

    Returns:
        The number of tokens of the plan's one prompt, and the model's limit of prompt plus output tokens.

    Raises:
        UnknownModel: No model is served under this name.
        InvalidRequest: The model can't serve the request, or the prompt can't be rendered.
        QueueFull: Too many calls wait for a tokenizer.
    """
    served = await served_model_get(name=plan.model)
    plan = plan_for_model(plan, served)
    (prompt,) = plan.prompts
    prompt = await prompt_with_files(prompt, served)
    ids = await tokenizer_cache().run(served, lambda text: text.token_ids(prompt))
    return len(ids), served.max_model_len
