"""Conversations with pictures: placeholders in token ids, and the positions of marks behind them."""

import pytest

from inference.errors import PromptTooLong
from inference.text.images.parts import with_read_images
from tests.inference.llm.vision import MODELS, asking, image_part
from tests.inference.modelling.vision.tiny import picture


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return MODELS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def reader(model):
    llm = model.load(max_model_len=160)
    yield llm._preparer._conversations
    llm.close()


def read(reader, messages, **options):
    return reader.read({"messages": with_read_images(messages), **options})


def test_pictures_are_where_the_message_has_them(model, reader):
    prompt = read(reader, asking("fox", picture(60, 60), "dog", picture(90, 40)))
    first, second = prompt.images
    ids = prompt.token_ids
    for span in (first, second):
        assert set(ids[span.start : span.stop]) == {model.image_token}
    assert ids.count(model.image_token) == first.num_tokens + second.num_tokens
    assert first.stop < second.start and prompt.conversation is None
    assert prompt.text.index("fox") < prompt.text.index("dog")


def test_marks_behind_and_before_pictures(model, reader):
    mark = {"cache_control": {"type": "ephemeral"}}
    image = image_part(picture(60, 60))
    prompt = read(reader, asking({"type": "text", "text": "fox", **mark}, image | mark, "dog"))
    (span,) = prompt.images
    before, behind = prompt.breakpoints
    assert before.position <= span.start and behind.position >= span.stop
    bare = read(reader, asking("fox", image, "dog"))
    assert bare.token_ids == prompt.token_ids and bare.breakpoints is None


def test_what_cannot_fit_is_not_decoded(model, reader, monkeypatch):
    images = [picture(300, 200, seed) for seed in range(10)]
    monkeypatch.setattr(reader._images._decoder, "decode", lambda *_: pytest.fail("an image was decoded"))
    with pytest.raises(PromptTooLong):
        read(reader, asking(*images))


def test_gemma_writes_its_pictures_as_its_processor_does(tmp_path):
    """Gemma3Processor.full_image_sequence: line breaks and marks around the soft tokens."""
    llm = MODELS["gemma3"](tmp_path).load()
    try:
        prompt = read(llm._preparer._conversations, asking("fox", picture(60, 60), "dog"))
    finally:
        llm.close()
    image = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    assert prompt.text == f"<s><start_of_turn>user\nfox{image}dog<end_of_turn>\n<start_of_turn>model\n"
