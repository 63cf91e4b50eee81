"""Read the files of pictures from their Base64, as far as their headers. Standard library only."""

from __future__ import annotations

import binascii
import contextlib

from inference.errors import InvalidRequest
from inference.text.images.header import ImageHeader, read_header
from inference.values.images import MAX_IMAGE_BYTES, ImagePart, check_image_size

HEAD_CHARS = 1 << 20
"""Characters of Base64 in which nearly all files have their size; of others the whole is read."""


def image_bytes(data: object, where: str) -> bytes:
    """The bytes of a picture's Base64.

    Raises:
        InvalidRequest: It isn't Base64, is empty, or has more than ``MAX_IMAGE_BYTES``.
    """
    return _decoded(_checked(data, where), where)


def image_header(data: object, where: str) -> ImageHeader:
    """The header of a picture in Base64; of a large file only the beginning is decoded, which takes no time.

    Raises:
        InvalidRequest: It is no picture, is empty, or has more than ``MAX_IMAGE_BYTES``.
    """
    text = _checked(data, where)
    if len(text) > HEAD_CHARS:
        with contextlib.suppress(InvalidRequest):
            return read_header(_decoded(text[:HEAD_CHARS], where), where)
    return read_header(_decoded(text, where), where)


def _checked(data: object, where: str) -> str:
    if not isinstance(data, str) or not data:
        raise InvalidRequest(f"{where}: the image has no data; send the file in Base64.", param=where)
    if len(data) > 4 * -(-MAX_IMAGE_BYTES // 3):
        raise InvalidRequest(
            f"{where}: the image has about {len(data) * 3 // 4:,} bytes, at most {MAX_IMAGE_BYTES:,} are read; scale "
            "it down.",
            param=where,
        )
    return data


def _decoded(text: str, where: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{where}: the image's data isn't Base64; encode the file again.", param=where) from None


def read_part(data: str, where: str) -> ImagePart:
    """A picture of a request, with the size that its header states; no pixel is decoded.

    Args:
        data: The file in Base64.
        where: Its place, for the message.

    Raises:
        InvalidRequest: It is no picture, or exceeds a limit.
    """
    width, height = image_header(data, where).size
    check_image_size(width, height, where)
    return {"type": "image", "data": data, "width": width, "height": height}
