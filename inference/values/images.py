"""How a model sees pictures: the sizes that they are brought to, the tokens that they take, and where they stand.

A picture travels in a message's content as an ``ImagePart``: the bytes that the client sent, in Base64, with the size
that their header states. So the web process counts its tokens without decoding it. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from inference.errors import InvalidRequest, UnsupportedFeature

MAX_IMAGE_BYTES = 10 << 20
MAX_IMAGE_SIDE = 16_384
MAX_IMAGE_PIXELS = 50_000_000
"""Of one picture: as it is stored, and as it is decoded; a phone's 48 million pixels are read."""
MAX_SIDE_RATIO = 100
MAX_IMAGES = 32
MAX_IMAGES_BYTES = 16 << 20
MAX_IMAGES_PIXELS = 200_000_000
"""Of one request, since others wait while its images are decoded."""

IMAGE_PART = "image"


class ImagePart(TypedDict):
    """A picture in a message's content."""

    type: Literal["image"]
    data: str  # Base64 of the file
    width: int  # as it is shown, after the turn that a photo's EXIF asks for
    height: int
    tokens: NotRequired[int]  # that it takes in the prompt, once the model is known
    cache_control: NotRequired[dict[str, Any]]


class ImageFilePart(TypedDict):
    """A picture in a message's content that is still the name of a stored file."""

    type: Literal["image"]
    file_id: str
    cache_control: NotRequired[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FittedImage:
    """What becomes of one picture before the tower.

    Attributes:
        width, height: What its pixels are resized to.
        canvas_width, canvas_height: With the white padding around them, at both sides alike.
        is_transposed: It is resized along the diagonal: columns and rows swap before, and swap back after.
        num_tokens: Tokens that it takes in the prompt.
    """

    width: int
    height: int
    canvas_width: int
    canvas_height: int
    is_transposed: bool
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """How pictures of any size are brought to what a tower reads.

    Attributes:
        kind: ``square``: every picture becomes one tile, its sides' ratio is lost (Gemma 3). ``tiles``: it becomes as
            many tiles as fit its ratio, behind which the whole comes once more as one tile (Phi-3-vision).
        tile: Side of a tile in pixels.
        tile_tokens: Side of a tile in tokens.
        max_tiles: Most tiles of the picture in parts; only with ``tiles``.
        resample: The filter of the resize.
    """

    kind: Literal["square", "tiles"]
    tile: int
    tile_tokens: int
    max_tiles: int = 1
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def fit(self, width: int, height: int) -> FittedImage:
        """What becomes of a picture of this size.

        Source for ``tiles``: the "HD transform" that https://arxiv.org/abs/2404.14219, section 6, names, as
        https://arxiv.org/abs/2404.06512, section 3.1, describes it: the longer side gets as many tiles as leave room
        for the shorter one, whose last row of tiles is filled with white.
        """
        if self.kind == "square":
            return FittedImage(self.tile, self.tile, self.tile, self.tile, False, self.tile_tokens**2)
        long, short = max(width, height), min(width, height)
        ratio = long / short
        columns = 1
        while (columns + 1) * math.ceil((columns + 1) / ratio) <= self.max_tiles:
            columns += 1
        new_long = columns * self.tile
        new_short = max(1, int(new_long / ratio))
        rows = math.ceil(new_short / self.tile)
        is_transposed = width < height
        sizes = (new_long, new_short), (new_long, rows * self.tile)
        (new_width, new_height), (canvas_width, canvas_height) = (
            (size[::-1] if is_transposed else size) for size in sizes
        )
        across, down = canvas_width // self.tile, canvas_height // self.tile
        # A separator ends each row of tokens, and one stands between the parts and the whole.
        side = self.tile_tokens
        num_tokens = down * side * (across * side + 1) + 1 + side * (side + 1)
        return FittedImage(new_width, new_height, canvas_width, canvas_height, is_transposed, num_tokens)


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """How a picture is written into a prompt.

    Attributes:
        placeholder: Text of the token that stands for one row of the picture's embeddings.
        printed: What the chat template prints for a picture, if it takes content in parts; empty: it takes texts only,
            and the picture stands on a line of its own.
        before, after: Text around the tokens, in the place of what is printed.
        numbered: How texts name a picture, with ``{n}`` for its number in the conversation from 1, if the template
            takes texts only; empty: they don't.
    """

    placeholder: str
    printed: str = ""
    before: str = ""
    after: str = ""
    numbered: str = ""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Everything about a model's pictures that the text side needs."""

    layout: ImageLayout
    prompt: ImagePrompt


def check_image_size(width: int, height: int, where: str) -> None:
    """Refuse a picture whose pixels would take too much memory, or whose sides no model was trained on.

    Args:
        width, height: As its header states them.
        where: Its place, for the message.

    Raises:
        InvalidRequest: A limit is exceeded.
    """
    if width < 1 or height < 1:
        raise InvalidRequest(f"{where}: the image is {width} x {height} pixels; send one with pixels.", param=where)
    if max(width, height) > MAX_IMAGE_SIDE:
        raise InvalidRequest(
            f"{where}: the image is {width:,} x {height:,} pixels, at most {MAX_IMAGE_SIDE:,} a side are read; "
            "scale it down.",
            param=where,
        )
    if width * height > MAX_IMAGE_PIXELS:
        raise InvalidRequest(
            f"{where}: the image has {width:,} x {height:,} = {width * height:,} pixels, at most {MAX_IMAGE_PIXELS:,} "
            "are decoded; scale it down.",
            param=where,
        )
    if max(width, height) > MAX_SIDE_RATIO * min(width, height):
        raise InvalidRequest(
            f"{where}: the image is {width:,} x {height:,} pixels; one side may be at most {MAX_SIDE_RATIO} times the "
            "other, cut it into parts.",
            param=where,
        )


def is_image(part: object) -> bool:
    """Whether a part of a message's content is a picture."""
    return isinstance(part, Mapping) and part.get("type") == IMAGE_PART


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The pictures of a conversation, in order."""
    return [part for _, part in placed_images(messages)]


def placed_images(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the part of each picture of a conversation, in order."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if is_image(part):
                yield f"messages.{number}.content.{place}", part


def check_images(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse more pictures than one request may have.

    Raises:
        InvalidRequest: There are too many, or they have too many bytes or pixels.
    """
    images = images_of(messages)
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(
            f"messages has {len(images)} images, at most {MAX_IMAGES} go into one request; leave some out.",
            param="messages",
        )
    size = sum(len(image.get("data", "")) * 3 // 4 for image in images)
    if size > MAX_IMAGES_BYTES:
        raise InvalidRequest(
            f"the images have {size:,} bytes together, at most {MAX_IMAGES_BYTES:,} go into one request; scale them "
            "down or leave some out.",
            param="messages",
        )
    pixels = sum(image.get("width", 0) * image.get("height", 0) for image in images)
    if pixels > MAX_IMAGES_PIXELS:
        raise InvalidRequest(
            f"the images have {pixels:,} pixels together, at most {MAX_IMAGES_PIXELS:,} go into one request; scale "
            "them down or leave some out.",
            param="messages",
        )


def bare_images(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of messages whose pictures are only ``{"type": "image"}``, as templates take them."""
    return [
        {**message, "content": [{"type": IMAGE_PART} if is_image(part) else part for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]


def no_images(name: str) -> UnsupportedFeature:
    """The error for pictures that come to a model without eyes."""
    return UnsupportedFeature(
        f"The model {name!r} reads text only; leave the images out, or use a model that sees (docs/vision.md).",
        param="messages",
    )


def expand_images(token_ids: Sequence[int], token_id: int, counts: Sequence[int]) -> list[int]:
    """Repeat the ``n``-th occurrence of a token ``counts[n]`` times; later ones stay."""
    expanded: list[int] = []
    number = 0
    for item in token_ids:
        if item == token_id and number < len(counts):
            expanded += [item] * counts[number]
            number += 1
        else:
            expanded.append(item)
    return expanded
