"""Tokenizers of the web process: few are loaded, none is closed while it is used, conversations are rendered."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest

from inference.errors import QueueFull, UnsupportedFeature
from inference.serving import tokenizers
from inference.serving.tokenizers import MAX_LOADED, ModelText, TokenizerCache
from inference.values.served_model import ServedModel
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.rows import TEMPLATE

PLAIN = ServedModel("id", "tiny", 0, 100331, 4096, TokenizerSpec("builtin", 100331, name="cl100k_base"), "1")
CHAT = dataclasses.replace(PLAIN, tokenizer=dataclasses.replace(PLAIN.tokenizer, chat_template=TEMPLATE))
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def closed(monkeypatch) -> list[ModelText]:
    """Texts whose tokenizers were closed; loading takes no time, since all share one tokenizer."""
    found: list[ModelText] = []
    shared = tokenizers.load_tokenizer(PLAIN.tokenizer)
    monkeypatch.setattr(tokenizers, "load_tokenizer", lambda _: shared)

    def close_if_unused(text: ModelText) -> None:
        if text._is_evicted and text._users == 0:
            found.append(text)

    monkeypatch.setattr(ModelText, "_close_if_unused", close_if_unused)
    return found


def model(number: int, version: str = "1") -> ServedModel:
    return dataclasses.replace(PLAIN, checkpoint_id=f"id-{number}", version=version)


async def test_text_becomes_ids_and_ids_text():
    cache = TokenizerCache()
    ids = await cache.run(PLAIN, lambda text: text.token_ids({"text": "Hello, world"}))
    assert len(ids) == 3
    assert await cache.run(PLAIN, lambda text: text.tokenizer.decode(ids)) == "Hello, world"


async def test_a_conversation_is_rendered_by_the_models_template():
    cache = TokenizerCache()
    prompt = {"messages": MESSAGES}
    assert await cache.run(CHAT, lambda text: text.prompt_text(prompt)) == "<|user|>\nHi\n<|assistant|>\n"
    without = {**prompt, "add_generation_prompt": False}
    assert await cache.run(CHAT, lambda text: text.prompt_text(without)) == "<|user|>\nHi\n"
    ids = await cache.run(CHAT, lambda text: text.token_ids(prompt))
    as_text = {"text": "<|user|>\nHi\n<|assistant|>\n"}
    assert ids == await cache.run(CHAT, lambda text: text.token_ids(as_text, parse_special=True))


async def test_a_model_without_a_template_takes_text_only():
    with pytest.raises(UnsupportedFeature) as refused:
        await TokenizerCache().run(PLAIN, lambda text: text.token_ids({"messages": MESSAGES}))
    assert refused.value.param == "messages"


async def test_the_least_recently_used_goes_first(closed):
    cache = TokenizerCache()
    texts = [await cache.run(model(number), lambda text: text) for number in range(MAX_LOADED)]
    assert await cache.run(model(0), lambda text: text) is texts[0]
    await cache.run(model(MAX_LOADED), lambda text: text)
    assert closed == [texts[1]]
    assert await cache.run(model(0), lambda text: text) is texts[0]


async def test_a_new_version_replaces_the_old_one(closed):
    cache = TokenizerCache()
    others = [await cache.run(model(number), lambda text: text) for number in range(MAX_LOADED)]
    fresh = await cache.run(model(0, "2"), lambda text: text)
    assert closed == [others[0]]
    assert fresh is not others[0]
    assert await cache.run(model(1), lambda text: text) is others[1]


async def test_what_is_in_use_is_closed_after_its_use(closed):
    cache = TokenizerCache()
    started, may_end = threading.Event(), threading.Event()

    def work(text: ModelText) -> ModelText:
        started.set()
        assert may_end.wait(60)
        return text

    running = asyncio.create_task(cache.run(model(0), work))
    await asyncio.to_thread(started.wait, 60)
    await cache.run(model(0, "2"), lambda text: text)
    assert closed == []
    may_end.set()
    assert [await running] == closed


async def test_too_many_waiting_are_refused_until_one_ends(monkeypatch):
    monkeypatch.setattr(tokenizers, "NUM_THREADS", 1)
    monkeypatch.setattr(tokenizers, "MAX_WAITING", 0)
    cache = TokenizerCache()
    started, may_end = threading.Event(), threading.Event()

    def work(text: ModelText) -> None:
        started.set()
        assert may_end.wait(60)

    running = asyncio.create_task(cache.run(PLAIN, work))
    await asyncio.to_thread(started.wait, 60)
    with pytest.raises(QueueFull):
        await cache.run(PLAIN, work)
    may_end.set()
    await running
    assert await cache.run(PLAIN, lambda text: len(text.token_ids({"text": "Hi"}))) == 1
