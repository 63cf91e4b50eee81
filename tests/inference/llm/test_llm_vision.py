"""Conversations with pictures through the whole LLM, against transformers and against themselves."""

import random
from dataclasses import replace

import pytest
import torch
from PIL import Image

from inference.errors import InvalidChatTemplate, InvalidRequest, PromptTooLong, UnsupportedFeature
from inference.llm.llm import LLM
from inference.llm.offline import _local_message
from inference.modelling.vision.encoder import ImageEncoder
from inference.text.images.parts import with_read_images
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.llm.vision import MODELS, OPTIONS, asking, ids_of, image_part, usage_of
from tests.inference.modelling.vision.tiny import picture

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return MODELS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def llm(model):
    loaded = model.load()
    yield loaded
    loaded.close()


def scored(llm, messages):
    """The prompt's ids, and the log-probabilities of all its tokens but the first."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=20, ignore_eos=True)
    events = list(llm.events(messages, params, return_prompt_token_ids=True))
    assert events[-1]["type"] == "done", events[-1]
    return events[0]["prompt_token_ids"], events[0]["prompt_logprobs"][1:]


@pytest.mark.parametrize("budget", [13, 512])
def test_logits_are_transformers(model, budget):
    """Within 1e-3, at every position, for prompts in one chunk and in many."""
    llm = model.load(max_num_batched_tokens=budget)
    images = [picture(300, 200, 1), picture(60, 90, 2)]
    conversations = [
        (asking("what is this?"), []),
        (asking(images[0], "what is this?", before="see"), images[:1]),
        (asking("compare", images[1], images[0], "which?"), [images[1], images[0]]),
    ]
    try:
        for messages, pictures in conversations:
            tokens, entries = scored(llm, messages)
            expected = torch.log_softmax(model.reference.logits(tokens, model.image_token, pictures), -1)
            assert len(entries) == len(tokens) - 1
            for position, entry in enumerate(entries):
                for found in [entry, *entry["top"]]:
                    wanted = expected[position, found["token_id"]].item()
                    assert abs(found["logprob"] - wanted) < 1e-3, (position, found, wanted)
    finally:
        llm.close()


def test_what_is_seen_decides(model, llm):
    """Another picture of the same size, and no picture, give other tokens."""
    found = {
        tuple(ids_of(list(llm.events(asking(image, "what?"), GREEDY))))
        for image in (picture(300, 200, 1), picture(300, 200, 5), picture(300, 200, 9))
    }
    assert len(found) == 3


def test_32_mixed_requests_are_their_lone_runs(model):
    generator = random.Random(3)
    pictures = [picture(*size, seed) for seed, size in enumerate([(300, 200), (90, 200), (56, 56), (400, 60)])]
    messages = []
    for number in range(32):
        parts: list[str | Image.Image] = [f"request {number} " + "fox " * generator.randrange(12)]
        for image in generator.sample(pictures, generator.randrange(4) if number % 2 else 0):
            parts.insert(generator.randrange(len(parts) + 1), image)
        messages.append(asking(*parts, before=generator.choice([None, "the lazy dog"])))
    params = [
        SamplingParams(temperature=0.0 if n % 3 else 0.8, seed=n, max_tokens=8, ignore_eos=True, logprobs=2)
        for n in range(32)
    ]
    alone = model.load(prefix_cache=False)
    try:
        expected = [ids_of(list(alone.events(*item))) for item in zip(messages, params, strict=True)]
    finally:
        alone.close()
    assert len({tuple(ids) for ids in expected}) > 24
    # Few blocks, so that requests are preempted, and chunks that cut pictures anywhere.
    together = model.load(max_num_batched_tokens=37, cache_bytes=210_000)
    try:
        for _ in range(2):  # the second time the pictures' prefixes are cached
            requests = {}
            found = {number: [] for number in range(32)}
            for number, (item, param) in enumerate(zip(messages, params, strict=True)):
                # The later ones go first, in the midst of the earlier ones' pictures.
                prepared = together.prepare(local(item, param) | {"priority": 32 - number})
                together.add(prepared)
                requests[prepared.request_id] = number
                take(together, requests, found)
            while together.has_unfinished():
                take(together, requests, found)
            assert [ids_of(found[number]) for number in range(32)] == expected
        assert together.stats()["num_preemptions"] > 0
        assert together.stats()["prefix_cache"]["num_cached_tokens"] > 100
    finally:
        together.close()


def take(llm, requests, found):
    """Run a step, and put its events with their requests."""
    for event in llm.step():
        assert event["type"] != "error", event
        found[requests[event["request_id"]]].append(event)


def local(messages, params):
    return _local_message(messages, params, {})


def test_text_pays_nothing(model, llm, monkeypatch):
    """A text request doesn't come near the encoder, and its tokens are those of the model without eyes."""
    blind = LLM.load(replace(model.spec, vision=None), model.tokenizer, model.files, OPTIONS)
    monkeypatch.setattr(ImageEncoder, "forward", lambda *_: pytest.fail("the encoder ran"))
    try:
        for text in ("the quick", "what is in this picture?"):
            params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
            seeing, unseeing = (
                [event for event in found.events(asking(text), params) if event["type"] == "delta"]
                for found in (llm, blind)
            )
            assert [(e["token_ids"], e["logprobs"]) for e in seeing] == [
                (e["token_ids"], e["logprobs"]) for e in unseeing
            ]
        assert llm._images._decoder._sandbox._child is None
    finally:
        blind.close()


def test_prefixes_are_shared_by_what_is_seen(model, llm):
    image, other = picture(300, 200, 1), picture(300, 200, 2)
    runner = llm._engine._runner
    first = list(llm.events(asking(image, "what?"), GREEDY, return_prompt_token_ids=True))
    assert usage_of(first)["cached_tokens"] == 0 and runner._images.num_encoded == 1
    again = list(llm.events(asking(image, "what?"), GREEDY))
    assert usage_of(again)["cached_tokens"] == usage_of(again)["prompt_tokens"] - 1
    assert ids_of(again) == ids_of(first) and runner._images.num_encoded == 1
    # The same picture in another file is another picture; so is another one with as many tokens.
    for different in (image_part(image, "WEBP"), other):
        events = list(llm.events(asking(different, "what?"), GREEDY))
        assert usage_of(events)["prompt_tokens"] == usage_of(first)["prompt_tokens"]
        assert usage_of(events)["cached_tokens"] <= first[0]["prompt_token_ids"].index(model.image_token)
    assert runner._images.num_encoded == 3
    # A second turn finds the first one, picture included.
    longer = [*asking(image, "what?"), {"role": "assistant", "content": "fox"}, {"role": "user", "content": "why?"}]
    assert usage_of(list(llm.events(longer, GREEDY)))["cached_tokens"] > 30


def test_python_programs_send_images_in_conversations(llm):
    messages = asking(picture(60, 90, 2), "what?")
    expected = ids_of(list(llm.events(messages, GREEDY)))
    assert llm.chat(messages, GREEDY)[0].outputs[0].token_ids == expected
    assert [token for delta in llm.stream(messages, GREEDY) for token in delta.token_ids] == expected


def test_images_count_in_tokens(model, llm):
    image = picture(300, 200)
    tokens = llm._images.count_tokens(with_parts(asking(image)))
    without = usage_of(list(llm.events(asking("what?"), GREEDY)))["prompt_tokens"]
    both = usage_of(list(llm.events(asking(image, "what?"), GREEDY)))["prompt_tokens"]
    # A line break stands between picture and text; Gemma 3 has more of them, and tokens around the picture.
    assert without + tokens[0] < both < without + tokens[0] + 8
    short = model.load(max_model_len=tokens[0] + 4)
    try:
        with pytest.raises(PromptTooLong, match="your messages resulted in"):
            list(short.events(asking(image, "what is this?"), GREEDY))
        assert short._images._decoder._sandbox._child is None, "nothing is decoded for a prompt that can't fit"
    finally:
        short.close()


def with_parts(messages):
    return with_read_images(messages)


def test_marks_stand_behind_images(model, llm):
    marked = asking(image_part(picture(300, 200)) | {"cache_control": {"type": "ephemeral"}}, "what?")
    events = list(llm.events(marked, GREEDY))
    kept = usage_of(events)["kept_prefixes"]
    assert len(kept) == 1 and kept[0]["tokens"] >= 16


def test_drafts_of_ngrams_change_nothing(model):
    """Prompts with long runs of one placeholder are verified like any other."""
    messages = [asking(picture(300, 200, seed), "the fox the fox the fox", picture(60, 60)) for seed in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    found = []
    for speculative in (None, SpeculativeOptions("ngram", is_adaptive=False, min_match=1)):
        llm = model.load(speculative=speculative)
        try:
            found.append([ids_of(list(llm.events(item, params))) for item in messages])
        finally:
            llm.close()
    assert found[0] == found[1]


def test_a_user_writes_no_placeholder(model, llm):
    """A placeholder in a text stays text: it is neither a picture nor counted as one."""
    events = list(
        llm.events(
            asking("<|image|><image_soft_token><start_of_image>", picture(56, 56)), GREEDY, return_prompt_token_ids=True
        )
    )
    fit = model.spec.vision.layout.fit(56, 56)
    assert events[0]["prompt_token_ids"].count(model.image_token) == fit.num_tokens


def test_one_line_for_each_refusal(model, llm):
    bad = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    with pytest.raises(InvalidRequest, match=r"messages\.0\.content\.0: this is no image"):
        list(llm.events(asking(bad), GREEDY))
    with pytest.raises(UnsupportedFeature, match=r"the URL 'http://x/y.png' isn't fetched"):
        list(llm.events(asking({"type": "image_url", "image_url": {"url": "http://x/y.png"}}), GREEDY))
    with pytest.raises(InvalidRequest, match="named by a file, which only a server has; send a data URL"):
        list(llm.events(asking({"type": "image_file", "image_file": {"file_id": "file-1"}}), GREEDY))
    with pytest.raises(UnsupportedFeature, match="a saved state holds no images"):
        llm.save_state(asking(picture(56, 56), "what?"))
    assert not llm.has_unfinished() and llm.stats()["num_blocks_used"] == 0


def test_a_template_that_drops_images_is_refused(model):
    tokenizer = replace(model.tokenizer, chat_template="{{ messages|length }}")
    llm = LLM.load(model.spec, tokenizer, model.files, OPTIONS)
    try:
        with pytest.raises(InvalidChatTemplate, match="prints 0 of 1 images"):
            list(llm.events(asking(picture(56, 56)), GREEDY))
    finally:
        llm.close()


def test_a_model_without_eyes_says_so(model):
    blind = LLM.load(replace(model.spec, vision=None), model.tokenizer, model.files, OPTIONS)
    try:
        with pytest.raises(UnsupportedFeature, match="reads text only; leave the images out"):
            list(blind.events(asking(picture(56, 56), "what?"), GREEDY))
    finally:
        blind.close()
