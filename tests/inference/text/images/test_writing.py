"""Pictures in what templates read and print."""

import pytest

from inference.errors import InvalidChatTemplate
from inference.text.images.writing import with_images, with_text_content
from inference.values.images import ImagePrompt

IMAGE = {"type": "image"}
NUMBERED = "<|image_{n}|>"


def text(value: str) -> dict:
    return {"type": "text", "text": value}


def written(*contents, numbered: str = NUMBERED) -> list[str]:
    messages = [{"role": "user", "content": content} for content in contents]
    return [message["content"] for message in with_text_content(messages, "#", numbered)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([IMAGE, text("a")], "#\na"),
        ([text("a"), IMAGE, text("b"), IMAGE], "a\n#\nb\n#"),
        ([IMAGE, text("<|image_1|>\na")], "#\na"),
        ([text("a <|image_2|> b <|image_1|>"), IMAGE, IMAGE], "a # b #"),
        ([text("<|image_1|><|image_1|>"), IMAGE], "#<|image_1|>"),
        ([text("<|image_3|>"), IMAGE], "<|image_3|>\n#"),
        ([text(""), IMAGE], "\n#"),
        ("a <|image_1|>", "a <|image_1|>"),
    ],
)
def test_lines_and_names(content, expected):
    assert written(content) == [expected]


def test_numbers_go_on_through_a_conversation():
    assert written([IMAGE, text("a")], "b", [text("c <|image_2|>"), IMAGE]) == ["#\na", "b", "c #"]


def test_models_without_names_have_lines():
    assert written([text("<|image_1|>"), IMAGE], numbered="") == ["<|image_1|>\n#"]


def test_what_a_user_wrote_is_no_picture():
    images = ImagePrompt("<soft>", "<image>", "\n<image>", "<end>")
    pieces = [("a<image>b", True), ("<image>", False), ("c", True)]
    assert with_images(pieces, images, "#", 1) == [("a\n<image><soft><end>b", True), ("<image>", False), ("c", True)]
    with pytest.raises(InvalidChatTemplate, match="prints 1 of 2 images"):
        with_images(pieces, images, "#", 2)
