"""Placeholders become as many tokens as pictures have, and positions move with them."""

from types import SimpleNamespace

import pytest
from PIL import Image

from inference.errors import InvalidChatTemplate, InvalidRequest, UnsupportedFeature
from inference.text.images.placing import ImagePlacing
from inference.values.images import ImageInput, ImageLayout, ImagePrompt
from tests.inference.text.images.pictures import base64_of, encoded, png_of_size

IMAGES = ImageInput(ImageLayout("tiles", 336, 12, 16), ImagePrompt("<|image|>"))
TOKENIZER = SimpleNamespace(special_tokens={"<|image|>": 9})


def test_tokens_and_positions():
    placed = ImagePlacing(TOKENIZER, IMAGES).place([1, 9, 2, 9, 3], [3, 2])
    assert placed.token_ids == [1, 9, 9, 9, 2, 9, 9, 3]
    assert (placed.starts, placed.counts) == ([1, 5], [3, 2])
    assert [placed.moved(position) for position in range(6)] == [0, 1, 4, 5, 7, 8]


def test_placeholders_of_a_template_are_refused():
    with pytest.raises(InvalidChatTemplate, match="prints 2 placeholders for 1 images"):
        ImagePlacing(TOKENIZER, IMAGES).place([9, 9], [3])


def test_a_vocabulary_without_the_token_is_refused():
    ImagePlacing(TOKENIZER, IMAGES).check()
    with pytest.raises(UnsupportedFeature, match=r"no token '<\|image\|>', which stands for images"):
        ImagePlacing(SimpleNamespace(special_tokens={}), IMAGES).check()


def test_tokens_are_counted_by_the_header():
    placing = ImagePlacing(TOKENIZER, IMAGES)
    assert placing.count({"data": encoded(Image.new("RGB", (1920, 1080)))}, "x") == 2353
    with pytest.raises(InvalidRequest, match="20,000 x 10 pixels"):
        placing.count({"data": base64_of(png_of_size(20_000, 10, 1))}, "x")
