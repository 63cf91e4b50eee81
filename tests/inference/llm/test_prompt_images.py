"""The pictures of a conversation are counted before anything is decoded, and found by their digest."""

import base64
import hashlib

import pytest
from PIL import Image

from inference.errors import InvalidRequest, UnsupportedFeature
from inference.llm.prompt_images import PromptImages
from inference.modelling.specs.parts import NormSpec
from inference.modelling.vision.specs import PooledProjectorSpec, TowerSpec, VisionSpec
from inference.values.images import MAX_IMAGES, ImageLayout, ImagePrompt
from tests.inference.text.images.pictures import encoded

TOWER = TowerSpec(8, 16, 2, 1, 28, 14, "gelu_tanh", NormSpec("layer", 1e-6))
DATA = encoded(Image.new("RGB", (30, 20)))
IMAGE = {"type": "image", "data": DATA}


class Tokenizer:
    special_tokens = {"<image>": 9}


@pytest.fixture
def images():
    spec = VisionSpec(
        4, TOWER, PooledProjectorSpec(NormSpec()), ImageLayout("square", 28, 2), ImagePrompt("<image>"), (0.5,) * 3,
        (0.5,) * 3, sees_whole_image=True,
    )  # fmt: skip
    made = PromptImages(spec, Tokenizer())  # type: ignore[arg-type]
    yield made
    made.close()


def asked(*parts):
    return [{"role": "user", "content": list(parts)}]


def test_counting_decodes_nothing(images):
    assert images.count_tokens(asked("text")) == []
    assert images.count_tokens(asked(IMAGE, "text", IMAGE)) == [4, 4]
    assert images._decoder._sandbox._child is None


def test_spans(images):
    messages = asked(IMAGE, "text", IMAGE)
    placed = images.place([1, 9, 2, 9], images.count_tokens(messages))
    first, second = images.spans(messages, placed)
    assert (first.start, first.stop, second.start, second.stop) == (1, 5, 6, 10)
    assert first.pixels.shape == (28, 28, 3) and first.pixels is second.pixels
    assert first.digest == hashlib.sha256(base64.b64decode(DATA)).digest()
    assert first.is_whole and first.contains(3) and not first.contains(1) and not first.contains(5)


def test_refusals(images, monkeypatch):
    with pytest.raises(InvalidRequest, match=f"{MAX_IMAGES + 1} images, at most {MAX_IMAGES} go into one request"):
        images.count_tokens(asked(*[IMAGE] * (MAX_IMAGES + 1)))
    with pytest.raises(InvalidRequest, match=r"messages\.0\.content\.0: the image is named by a file"):
        images.count_tokens(asked({"type": "image", "file_id": "file-1"}))
    monkeypatch.setattr(images._placing, "_placeholder_id", None)
    with pytest.raises(UnsupportedFeature, match="no token '<image>', which stands for images"):
        images.count_tokens(asked(IMAGE))
