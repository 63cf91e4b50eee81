"""PromptImages: read, count, place and decode the pictures of a model's conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.engine.request import ImageSpan
from inference.errors import InvalidRequest
from inference.modelling.vision.specs import VisionSpec
from inference.text.images.decoder import ImageDecoder
from inference.text.images.placing import ImagePlacing, PlacedTokens
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.values.images import ImagePrompt, check_images, placed_images


class PromptImages:
    """The text side of one model's part that sees; thread-safe. Its child starts with the first picture.

    Args:
        vision: The part that sees.
        tokenizer: The model's.
    """

    def __init__(self, vision: VisionSpec, tokenizer: Tokenizer) -> None:
        self._is_whole = vision.sees_whole_image
        self._placing = ImagePlacing(tokenizer, vision.image_input)
        self._decoder = ImageDecoder(vision.layout)

    @property
    def prompt(self) -> ImagePrompt:
        """How pictures are written into a prompt."""
        return self._placing.images.prompt

    def count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of each picture of a conversation, by their headers.

        Raises:
            InvalidRequest: One is no picture, or exceeds a limit.
            UnsupportedFeature: The vocabulary has no token for pictures.
        """
        found = list(placed_images(messages))
        if not found:
            return []
        self._placing.check()
        check_images(messages)
        for where, part in found:
            if "data" not in part:
                raise InvalidRequest(
                    f"{where}: the image is named by a file, which only a server has; send a data URL.", param=where
                )
        return [self._placing.count(part, where) for where, part in found]

    def place(self, token_ids: Sequence[int], counts: Sequence[int]) -> PlacedTokens:
        """Repeat each picture's placeholder; see ``ImagePlacing.place``.

        Raises:
            InvalidChatTemplate: The template prints placeholders of its own.
        """
        return self._placing.place(token_ids, counts)

    def spans(self, messages: Sequence[Mapping[str, Any]], placed: PlacedTokens) -> tuple[ImageSpan, ...]:
        """Decode the pictures of a conversation.

        Raises:
            InvalidRequest: One is damaged.
            Unavailable: There is no memory for more pictures now.
        """
        spans: list[ImageSpan] = []
        for (where, part), start, count in zip(placed_images(messages), placed.starts, placed.counts, strict=True):
            image = self._decoder.decode(part, where)
            spans.append(ImageSpan(start, count, image.digest, image.pixels, self._is_whole, image))
        return tuple(spans)

    def close(self) -> None:
        """End the child."""
        self._decoder.close()
