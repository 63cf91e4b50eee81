"""Read the content parts that clients write for pictures: data URLs, ids of stored files, and no other addresses.

Forms: OpenAI's ``image_url`` (chat completions) and ``image_file`` (assistants); an ``image_url`` may hold a
``file_id`` in the place of a ``url``. https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.errors import InvalidRequest, UnsupportedFeature, shown
from inference.text.images.image_file import read_part
from inference.values.images import ImageFilePart, ImagePart

IMAGE_TYPES = ("image_url", "image_file")
_MEMBERS = frozenset({"url", "file_id", "detail"})
_DETAILS = (None, "auto", "high")
MAX_FILE_ID_CHARS = 64


def is_client_image(part: object) -> bool:
    """Whether a part is a picture in a client's form."""
    return isinstance(part, Mapping) and part.get("type") in IMAGE_TYPES


def read_client_image(part: Mapping[str, Any], where: str) -> ImagePart | ImageFilePart:
    """A picture as a client wrote it, with its size if it came along; nothing is fetched.

    Args:
        part: For which ``is_client_image`` holds.
        where: Its place, for the message.

    Raises:
        InvalidRequest: The part has another form, or isn't a picture, or exceeds a limit.
        UnsupportedFeature: It is an address, or asks for another detail.
    """
    kind = str(part["type"])
    extra = set(part) - {"type", kind, "cache_control"}
    value = part.get(kind)
    if isinstance(value, str) and kind == "image_url":
        value = {"url": value}
    if not isinstance(value, Mapping) or extra or set(value) - _MEMBERS:
        raise InvalidRequest(
            f"{where}: an {kind} part has the member {kind}, an object of {' or '.join(_sources(kind))}, and perhaps "
            "detail.",
            param=where,
        )
    if value.get("detail") not in _DETAILS:
        raise UnsupportedFeature(
            f"{where}: detail is {shown(value['detail'])}; images are always read at the model's full size, set it to "
            "auto or leave it out.",
            param=where,
        )
    found = [name for name in _sources(kind) if value.get(name) is not None]
    if len(found) != 1 or not isinstance(value[found[0]], str):
        raise InvalidRequest(
            f"{where}: an {kind} part names its image by {' or '.join(_sources(kind))}, a string.", param=where
        )
    named = value[found[0]]
    read: ImagePart | ImageFilePart = file_part(named, where) if found[0] == "file_id" else image_of_url(named, where)
    if part.get("cache_control") is not None:
        read["cache_control"] = part["cache_control"]
    return read


def file_part(file_id: str, where: str) -> ImageFilePart:
    """A picture that is a stored file.

    Raises:
        InvalidRequest: It is no file's id.
    """
    if not file_id.startswith("file-") or len(file_id) > MAX_FILE_ID_CHARS or not file_id.isascii():
        raise InvalidRequest(
            f"{where}: file_id is {shown(file_id)}; it must be the id of an uploaded file (POST /v1/files).",
            param=where,
        )
    return {"type": "image", "file_id": file_id}


def image_of_url(url: str, where: str) -> ImagePart:
    """The picture in a data URL (https://www.rfc-editor.org/rfc/rfc2397).

    Raises:
        UnsupportedFeature: It is another kind of URL.
        InvalidRequest: It isn't in Base64, or holds no picture, or exceeds a limit.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        raise UnsupportedFeature(
            f"{where}: the URL {url[:40]!r} isn't fetched; send the image itself as a data URL "
            "(data:image/png;base64,...), or upload it (POST /v1/files) and give its file_id.",
            param=where,
        )
    head, comma, data = rest.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest(
            f"{where}: the data URL begins with {url[:40]!r}; it must be data:image/png;base64,... in Base64.",
            param=where,
        )
    return read_part(data, where)


def with_read_images(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of messages whose pictures in a client's form are read.

    Raises:
        InvalidRequest: As ``read_client_image``.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = [
                read_client_image(part, f"messages.{number}.content.{place}") if is_client_image(part) else part
                for place, part in enumerate(content)
            ]
            found.append({**message, "content": parts})
        else:
            found.append(dict(message))
    return found


def _sources(kind: str) -> tuple[str, ...]:
    return ("url", "file_id") if kind == "image_url" else ("file_id",)
