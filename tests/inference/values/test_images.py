"""Sizes and tokens of pictures, and the limits that a header is held to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.values.images import (
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    ImageLayout,
    check_image_size,
    check_images,
    expand_images,
    placed_images,
)

TILES = ImageLayout("tiles", 336, 12, 16)


@pytest.mark.parametrize(
    ("size", "canvas", "num_tokens"),
    [
        # What Phi-3-vision's published processor gives: ((h/336 * w/336) + 1) * 144 + 1 + (h/336 + 1) * 12.
        ((336, 336), (1344, 1344), (16 + 1) * 144 + 1 + 5 * 12),
        ((1920, 1080), (1680, 1008), (15 + 1) * 144 + 1 + 4 * 12),
        ((1080, 1920), (1008, 1680), (15 + 1) * 144 + 1 + 6 * 12),
        ((1000, 50), (5376, 336), (16 + 1) * 144 + 1 + 2 * 12),
    ],
)
def test_tiles_of_a_picture(size, canvas, num_tokens):
    fit = TILES.fit(*size)
    assert (fit.canvas_width, fit.canvas_height) == canvas
    assert fit.num_tokens == num_tokens


@given(st.integers(1, 16384), st.integers(1, 16384), st.integers(1, 40))
def test_there_are_never_more_tiles_than_allowed(width, height, max_tiles):
    if max(width, height) > 100 * min(width, height):
        return
    fit = ImageLayout("tiles", 336, 12, max_tiles).fit(width, height)
    across, down = fit.canvas_width // 336, fit.canvas_height // 336
    assert 1 <= across * down <= max_tiles
    assert fit.width <= fit.canvas_width and fit.height <= fit.canvas_height
    assert fit.canvas_width % 336 == fit.canvas_height % 336 == 0
    assert fit.is_transposed == (width < height)


def test_a_square_layout_takes_as_many_tokens_for_every_picture():
    layout = ImageLayout("square", 896, 16)
    assert {layout.fit(*size).num_tokens for size in ((1, 50), (4000, 3000))} == {256}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((20_000, 10), "messages: the image is 20,000 x 10 pixels, at most 16,384 a side are read; scale it down."),
        ((16_000, 16_000), "256,000,000 pixels, at most 50,000,000 are decoded; scale it down."),
        ((1000, 9), "one side may be at most 100 times the other, cut it into parts."),
        ((0, 9), "the image is 0 x 9 pixels; send one with pixels."),
    ],
)
def test_sizes_that_are_refused(size, message):
    with pytest.raises(InvalidRequest) as caught:
        check_image_size(*size, "messages")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.http_status == 400


def test_a_request_has_limits_of_its_own():
    image = {"type": "image", "data": "A" * 400}
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}, image]}]
    check_images(messages)
    assert list(placed_images(messages)) == [("messages.0.content.1", image)]
    with pytest.raises(InvalidRequest, match=f"has {MAX_IMAGES + 1} images, at most {MAX_IMAGES}"):
        check_images([{"role": "user", "content": [image] * (MAX_IMAGES + 1)}])
    large = {"type": "image", "data": "A" * math.ceil(MAX_IMAGES_BYTES * 4 / 3 / 2 + 8)}
    wide = {**image, "width": 8000, "height": 6000}
    check_images([{"role": "user", "content": [wide] * 4}])
    with pytest.raises(InvalidRequest, match="240,000,000 pixels together, at most 200,000,000 go into one request"):
        check_images([{"role": "user", "content": [wide] * 5}])
    with pytest.raises(InvalidRequest, match="bytes together, at most"):
        check_images([{"role": "user", "content": [large, large]}])


def test_placeholders_are_repeated_in_order():
    assert expand_images([5, 9, 7, 9, 9], 9, [2, 3]) == [5, 9, 9, 7, 9, 9, 9, 9]
