"""What the child does with a picture, run in this process."""

import base64
import io
import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from inference.errors import InvalidRequest
from inference.text.images.child import handle, to_rgb
from inference.text.images.header import read_header
from inference.text.tokenisation.children.loop import Refused
from inference.values.images import check_image_size
from tests.inference.text.images.pictures import encoded

FIT = {"width": 8, "height": 4, "canvas_width": 8, "canvas_height": 8, "is_transposed": False}


def request(data: str, form: str, size, orientation: int = 1, **fit):
    return {
        "data": data,
        "format": form,
        "stored_size": list(size),
        "orientation": orientation,
        "fit": FIT | fit,
        "resample": "bilinear",
    }


def pixels(reply, height: int, width: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(reply["pixels"]), np.uint8).reshape(height, width, 3)


def test_padding_is_white_and_in_the_middle():
    found = pixels(handle(request(encoded(Image.new("RGB", (16, 8), "black")), "PNG", (16, 8))), 8, 8)
    assert (found[2:6] == 0).all() and (found[:2] == 255).all() and (found[6:] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(orientation):
    image = Image.effect_noise((16, 8), 90).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, "JPEG", exif=exif.tobytes(), quality=95)
    stored = Image.open(io.BytesIO(base64.b64decode(data)))
    expected = np.asarray(ImageOps.exif_transpose(stored))
    height, width = expected.shape[:2]
    fit = {"width": width, "height": height, "canvas_width": width, "canvas_height": height}
    found = pixels(handle(request(data, "JPEG", (16, 8), orientation, **fit)), height, width)
    assert (found == expected).all()


def test_modes_become_eight_bits_of_colour():
    grey = Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.uint16))
    assert np.asarray(to_rgb(grey))[0, :, 0].tolist() == [0, 128, 255]
    assert to_rgb(Image.new("RGBA", (2, 2), (10, 20, 30, 0))).getpixel((0, 0)) == (10, 20, 30)
    assert to_rgb(Image.new("L", (2, 2), 7)).getpixel((0, 0)) == (7, 7, 7)
    assert to_rgb(Image.new("1", (2, 2), 1)).getpixel((0, 0)) == (255, 255, 255)


def test_a_damaged_file_is_refused():
    data = base64.b64decode(encoded(Image.effect_noise((64, 64), 90)))
    with pytest.raises(Refused, match="it is damaged"):
        handle(request(base64.b64encode(data[: len(data) // 2]).decode(), "PNG", (64, 64)))
    with pytest.raises(Refused, match="its header says another size"):
        handle(request(encoded(Image.new("RGB", (4, 4))), "PNG", (5, 4)))
    with pytest.raises(Refused, match="it is damaged"):
        handle(request(encoded(Image.new("RGB", (4, 4))), "JPEG", (4, 4)))


@pytest.mark.parametrize(
    ("form", "options"), [("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {})]
)
def test_damaged_files_are_decoded_or_refused(form, options):
    """Hundreds of mutations: the child's own errors are ``Refused``, none is something else."""
    generator = random.Random(form + str(options))
    whole = base64.b64decode(encoded(Image.effect_noise((40, 30), 90).convert("RGB"), form, **options))
    num_decoded = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 5)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        data = bytes(data[: generator.randrange(len(data) // 2, 2 * len(data))])
        try:
            header = read_header(data, "x")
            check_image_size(*header.size, "x")
        except InvalidRequest:
            continue
        stored = header.stored_width, header.stored_height
        if stored[0] * stored[1] > 1_000_000:
            continue
        try:
            handle(request(base64.b64encode(data).decode(), header.format, stored, header.orientation))
            num_decoded += 1
        except Refused as error:
            assert "\n" not in str(error)
    assert num_decoded > 10 or form == "PNG", "a PNG has checksums"
