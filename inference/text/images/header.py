"""Read format, size and turn of a picture from its first bytes, without decoding a pixel.

PNG, JPEG, WebP and GIF. Standard library only: the web process calls this on what strangers send.

Sources: https://www.w3.org/TR/png-3/ (11.2.1), https://www.w3.org/Graphics/JPEG/itu-t81.pdf (B.2.2),
https://developers.google.com/speed/webp/docs/riff_container, https://www.w3.org/Graphics/GIF/spec-gif89a.txt (18),
and EXIF's tag 0x0112 of https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from inference.errors import InvalidRequest

ImageFormat = Literal["PNG", "JPEG", "WEBP", "GIF"]

_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_ORIENTATION = 0x0112
_MAX_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """What the first bytes of a picture say.

    Attributes:
        stored_width, stored_height: Of its pixels as they are stored.
        orientation: EXIF's number, 1 to 8; from 5 on the sides are swapped.
    """

    format: ImageFormat
    stored_width: int
    stored_height: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Width and height as it is shown."""
        size = self.stored_width, self.stored_height
        return size if self.orientation < 5 else size[::-1]


def read_header(data: bytes, where: str) -> ImageHeader:
    """The header of a picture.

    Args:
        data: The whole file, or enough of its beginning.
        where: Its place, for the message.

    Raises:
        InvalidRequest: It is no picture of a known format, or it ends before its size.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return ImageHeader("GIF", *struct.unpack_from("<HH", data, 6))
    except (struct.error, IndexError, ValueError):
        raise InvalidRequest(
            f"{where}: the image ends before its size, or its header is damaged; send the whole file.", param=where
        ) from None
    shown = data[:8].hex(" ") or "no bytes"
    raise InvalidRequest(
        f"{where}: this is no image ({len(data):,} bytes that begin with {shown}); PNG, JPEG, WebP and GIF are read.",
        param=where,
    )


def _png(data: bytes) -> ImageHeader:
    if data[12:16] != b"IHDR":
        raise ValueError("no IHDR")
    return ImageHeader("PNG", *struct.unpack_from(">II", data, 16))


def _jpeg(data: bytes) -> ImageHeader:
    """Walk from segment to segment to the frame header, and read the turn of an EXIF segment on the way."""
    orientation, at = 1, 2
    while True:
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # fill bytes
            at += 1
        if data[at] != 0xFF:
            raise ValueError("no marker")
        marker = data[at + 1]
        if marker in _BARE_MARKERS:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker in _SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageHeader("JPEG", width, height, orientation)
        if marker in (0xD9, 0xDA) or length < 2:
            raise ValueError("no frame header")
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data[at + 10 : at + 2 + length])
        at += 2 + length


def _orientation(tiff: bytes) -> int:
    """EXIF's orientation; 1 if it isn't there or can't be read, as viewers do."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for number in range(min(count, _MAX_ENTRIES)):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * number)
            if tag == _ORIENTATION and kind == 3:
                return value if 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1


def _webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        if len(data) < 30:
            raise ValueError("short")
        return ImageHeader("WEBP", width, height)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise ValueError("no signature")
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("WEBP", width & 0x3FFF, height & 0x3FFF)
    raise ValueError("no frame")
