"""Headers are read as Pillow reads them, and what is no header is refused in one line."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from inference.errors import InvalidRequest
from inference.text.images.header import read_header
from tests.inference.text.images.pictures import encoded


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_sizes(form, options):
    image = Image.new("RGB", (301, 77), "red")
    header = read_header(base64.b64decode(encoded(image, form, **options)), "x")
    assert (header.format, header.size, header.orientation) == (form, (301, 77), 1)


def test_a_webp_with_transparency():
    header = read_header(base64.b64decode(encoded(Image.new("RGBA", (30, 20), (1, 2, 3, 4)), "WEBP")), "x")
    assert header.size == (30, 20)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_turn_of_a_photo(orientation, order):
    image = Image.new("RGB", (40, 20))
    exif = Image.Exif()
    exif.endian = order
    exif[0x0112] = orientation
    data = base64.b64decode(encoded(image, "JPEG", exif=exif.tobytes()))
    header = read_header(data, "x")
    turned = ImageOps.exif_transpose(Image.open(__import__("io").BytesIO(data)))
    assert header.orientation == orientation
    assert header.size == turned.size


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x: this is no image (0 bytes that begin with no bytes); PNG, JPEG, WebP and GIF are read."),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93", "this is no image"),
        (b"<svg>hi</svg>", "this is no image (13 bytes that begin with 3c 73 76 67"),
        (b"\x89PNG\r\n\x1a\n1234", "header is damaged; send the whole file."),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "header is damaged; send the whole file."),
        (b"RIFF1234WEBPVP8 ", "header is damaged; send the whole file."),
        (b"GIF89a\x01", "header is damaged; send the whole file."),
    ],
)
def test_what_is_no_picture(data, message):
    with pytest.raises(InvalidRequest) as caught:
        read_header(data, "x")
    assert message in caught.value.message and "\n" not in caught.value.message


STARTS = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\0\x10Exif\0\0II*\0", b"RIFF1234WEBPVP8X", b"GIF89a"]


@given(st.sampled_from(STARTS), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(start, rest):
    try:
        header = read_header(start + rest, "x")
    except InvalidRequest:
        return
    assert min(header.size) >= 0 and 1 <= header.orientation <= 8


def test_a_header_without_end_is_refused():
    with pytest.raises(InvalidRequest):
        read_header(b"\xff\xd8" + b"\xff\xd0" * 10_000, "x")
