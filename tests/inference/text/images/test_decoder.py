"""Pictures are decoded in a child that ends with its limits; equal ones are decoded once."""

import gc
import os
import time

import pytest
from PIL import Image

from inference.errors import InvalidRequest, Unavailable
from inference.text.images import decoder as module
from inference.text.images.decoder import ImageDecoder
from inference.text.images.image_file import read_part
from inference.values.images import ImageLayout
from tests.inference.text.images.pictures import base64_of, encoded, png_of_size

LAYOUT = ImageLayout("square", 8, 2)


@pytest.fixture
def decoder():
    made = ImageDecoder(LAYOUT)
    yield made
    made.close()


def part(image: Image.Image, form: str = "PNG"):
    return read_part(encoded(image, form), "x")


def test_pixels_and_tokens(decoder):
    found = decoder.decode(part(Image.new("RGB", (30, 20), (1, 2, 3))), "x")
    assert found.pixels.shape == (8, 8, 3) and (found.pixels == (1, 2, 3)).all()
    assert found.num_tokens == 4 and len(found.digest) == 32


def test_equal_pictures_are_decoded_once_and_freed_with_the_last_request(decoder, monkeypatch):
    red = part(Image.new("RGB", (30, 20), "red"))
    first = decoder.decode(red, "x")
    assert decoder.decode(red, "x") is first
    monkeypatch.setattr(module, "MAX_PIXEL_BYTES", first.pixels.nbytes)
    blue = part(Image.new("RGB", (30, 20), "blue"))
    with pytest.raises(Unavailable, match="the images of running requests take") as caught:
        decoder.decode(blue, "x")
    assert caught.value.retry_after_s == 5
    del first
    gc.collect()
    assert decoder.decode(blue, "x").num_tokens == 4


def test_a_bomb_ends_the_child_and_nothing_else(decoder):
    """A file of 50 kB whose text chunk unpacks to gigabytes, and one that says less than its data holds."""
    ordinary = part(Image.new("RGB", (30, 20)))
    decoder.decode(ordinary, "x")
    bomb = png_of_size(7000, 7000)
    assert len(bomb) < 60_000
    started = time.monotonic()
    decoder.decode(read_part(base64_of(bomb), "x"), "x")  # 49 million pixels are within the limits
    assert time.monotonic() - started < 30
    for size in ((20_000, 10), (16_384, 16_384), (60_000, 60_000)):
        with pytest.raises(InvalidRequest, match="scale it down"):
            decoder.decode({"data": base64_of(png_of_size(*size, lines=1))}, "x")
    assert decoder.decode(ordinary, "x").num_tokens == 4


def test_a_child_that_runs_out_of_memory_is_one_line(monkeypatch):
    monkeypatch.setattr(module, "DECODE_MEMORY_BYTES", 64 << 20)
    decoder = ImageDecoder(LAYOUT)
    try:
        with pytest.raises(InvalidRequest, match=r"x: the image can't be decoded: .*; send another file\.") as caught:
            decoder.decode(read_part(base64_of(png_of_size(7000, 7000)), "x"), "x")
        assert "\n" not in caught.value.message
        assert decoder.decode(part(Image.new("RGB", (30, 20))), "x").num_tokens == 4
    finally:
        decoder.close()


def test_a_child_that_takes_too_long_is_killed(decoder, monkeypatch):
    monkeypatch.setattr(module, "DECODE_CPU_S", 0.05)
    with pytest.raises(InvalidRequest, match="it takes too long"):
        decoder.decode(read_part(base64_of(png_of_size(7000, 7000)), "x"), "x")
    child = decoder._sandbox._child
    assert child is None, "the child that broke its limit is gone"
    monkeypatch.setattr(module, "DECODE_CPU_S", 6.0)
    decoder.decode(part(Image.new("RGB", (30, 20))), "x")


def test_nothing_is_left_behind():
    decoder = ImageDecoder(LAYOUT)
    decoder.decode(part(Image.new("RGB", (30, 20))), "x")
    pid = decoder._sandbox._child.process.pid
    decoder.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
