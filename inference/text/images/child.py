"""Child that decodes one picture at a time and resizes it, under limits on time and memory.

A decoder reads whatever a stranger sends, so it runs here, without network and files
(``inference.text.tokenisation.sandbox``). Pillow's resize is the one that the models' own preprocessing uses.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Imported one by one, since the confined process can't import others later.
from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError, WebPImagePlugin

from inference.text.tokenisation.children.loop import Refused, serve

PLUGINS = (GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
WHITE = (255, 255, 255)

Image.MAX_IMAGE_PIXELS = None  # the caller has checked the header against limits of its own


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Decode ``data`` and bring it to the canvas of ``fit``.

    Returns:
        ``pixels``: canvas_height x canvas_width x 3 bytes in Base64.
    """
    file = io.BytesIO(base64.b64decode(request["data"]))
    try:
        image: Image.Image = Image.open(file, formats=[request["format"]])
        if list(image.size) != request["stored_size"]:
            raise Refused(f"its decoder finds {image.width} x {image.height} pixels, its header says another size")
        image = to_rgb(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise Refused(f"it is damaged ({str(error)[:120]})") from None
    if request["orientation"] in TURNS:
        image = image.transpose(TURNS[request["orientation"]])
    canvas = fitted(image, request["fit"], request["resample"])
    return {"pixels": base64.b64encode(canvas.tobytes()).decode()}


def to_rgb(image: Image.Image) -> Image.Image:
    """The first frame in 8 bits a colour; transparency is dropped, as the models' own preprocessing does."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    return image.convert("RGB")


def fitted(image: Image.Image, fit: dict[str, Any], resample: str) -> Image.Image:
    """Resize a picture, and put it into the middle of its white canvas (``FittedImage``)."""
    size, canvas_size = (fit["width"], fit["height"]), (fit["canvas_width"], fit["canvas_height"])
    if fit["is_transposed"]:
        image = image.transpose(Image.Transpose.TRANSPOSE)
        size, canvas_size = size[::-1], canvas_size[::-1]
    image = image.resize(size, FILTERS[resample])
    if size != canvas_size:
        canvas = Image.new("RGB", canvas_size, WHITE)
        canvas.paste(image, ((canvas_size[0] - size[0]) // 2, (canvas_size[1] - size[1]) // 2))
        image = canvas
    return image.transpose(Image.Transpose.TRANSPOSE) if fit["is_transposed"] else image


def main(memory_bytes: int, readable: Sequence[Path]) -> None:
    serve(handle, memory_bytes, readable)
