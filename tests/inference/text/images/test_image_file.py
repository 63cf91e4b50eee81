"""Files of pictures are read from their Base64, and refused in one line."""

import base64

import pytest
from PIL import Image

from inference.errors import InvalidRequest
from inference.text.images import image_file
from inference.text.images.image_file import image_bytes, image_header, read_part
from inference.values.images import MAX_IMAGE_BYTES
from tests.inference.text.images.pictures import base64_of, encoded


def test_bytes_that_are_refused():
    with pytest.raises(InvalidRequest, match="x: the image's data isn't Base64"):
        image_bytes("§§", "x")
    with pytest.raises(InvalidRequest, match="x: the image has no data"):
        image_bytes("", "x")
    with pytest.raises(InvalidRequest, match=f"at most {MAX_IMAGE_BYTES:,} are read; scale it down"):
        image_bytes("A" * (MAX_IMAGE_BYTES * 4 // 3 + 100), "x")


def test_a_part_has_the_size_that_is_shown():
    exif = Image.Exif()
    exif[0x0112] = 6
    found = read_part(encoded(Image.new("RGB", (30, 20)), "JPEG", exif=exif.tobytes()), "x")
    assert (found["width"], found["height"]) == (20, 30)


def test_the_header_of_a_large_file_is_in_its_beginning():
    data = encoded(Image.effect_noise((1200, 1200), 90))
    assert len(data) > image_file.HEAD_CHARS
    assert image_header(data[:-8] + "%%%%%%%%", "x").size == (1200, 1200)
    # Metadata of a megabyte before the size: the whole is decoded.
    comment = b"\xff\xfe\xff\xff" + bytes(0xFFFD)
    jpeg = base64.b64decode(encoded(Image.new("RGB", (30, 20)), "JPEG"))
    assert image_header(base64_of(jpeg[:2] + comment * 20 + jpeg[2:]), "x").size == (30, 20)
