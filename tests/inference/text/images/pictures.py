"""Files of pictures, good and bad."""

import base64
import io
import struct
import zlib

from PIL import Image


def encoded(image: Image.Image, form: str = "PNG", **options) -> str:
    """A picture's file in Base64."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return base64.b64encode(file.getvalue()).decode()


def chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_of_size(width: int, height: int, lines: int | None = None) -> bytes:
    """A grey PNG that says it has this size, of few bytes however large it says that it is."""
    packer = zlib.compressobj(9)
    line = b"\0" * (width + 1)
    data = b"".join(packer.compress(line) for _ in range(height if lines is None else lines)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()
