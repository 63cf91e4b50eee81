"""ImagePlacing: the pictures of a conversation in its token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidChatTemplate, UnsupportedFeature
from inference.text.images.image_file import image_header
from inference.text.tokenisation.tokenizer import Tokenizer
from inference.values.images import ImageInput, check_image_size, expand_images


@dataclass(frozen=True, slots=True)
class PlacedTokens:
    """A prompt's token ids with those of its pictures.

    Attributes:
        token_ids: The placeholder of each picture is there as often as the picture has tokens.
        starts: Position of the first token of each picture.
        counts: Tokens of each picture.
    """

    token_ids: list[int]
    starts: list[int]
    counts: list[int]

    def moved(self, position: int) -> int:
        """Where a position of the ids with one placeholder for each picture has gone."""
        for start, count in zip(self.starts, self.counts, strict=True):
            if position > start:
                position += count - 1
        return position


class ImagePlacing:
    """Writes the pictures of one model into token ids.

    Args:
        tokenizer: Has the placeholder.
        images: How the model sees pictures.
    """

    def __init__(self, tokenizer: Tokenizer, images: ImageInput) -> None:
        self.images = images
        self._placeholder_id = tokenizer.special_tokens.get(images.prompt.placeholder)

    def check(self) -> None:
        """Refuse pictures if the vocabulary has no placeholder for them.

        Raises:
            UnsupportedFeature: It hasn't.
        """
        if self._placeholder_id is None:
            raise UnsupportedFeature(
                f"the model's vocabulary has no token {self.images.prompt.placeholder!r}, which stands for images; "
                "leave the images out.",
                param="messages",
            )

    def count(self, part: Mapping[str, Any], where: str) -> int:
        """Tokens of a picture, by its header.

        Raises:
            InvalidRequest: It is no picture, or exceeds a limit.
        """
        header = image_header(part.get("data"), where)
        check_image_size(*header.size, where)
        return self.images.layout.fit(*header.size).num_tokens

    def place(self, token_ids: Sequence[int], counts: Sequence[int]) -> PlacedTokens:
        """Repeat each picture's placeholder.

        Args:
            token_ids: With one placeholder for each picture.
            counts: Tokens of each picture.

        Raises:
            InvalidChatTemplate: There are more or fewer placeholders: the template has some of its own.
        """
        places = [number for number, item in enumerate(token_ids) if item == self._placeholder_id]
        if len(places) != len(counts):
            raise InvalidChatTemplate(
                f"the chat template prints {len(places)} placeholders for {len(counts)} images.", param="messages"
            )
        assert self._placeholder_id is not None
        expanded = expand_images(token_ids, self._placeholder_id, counts)
        starts = [place + sum(counts[:number]) - number for number, place in enumerate(places)]
        return PlacedTokens(expanded, starts, list(counts))
