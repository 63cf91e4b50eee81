"""ImageDecoder: pictures of requests to the pixels that a model's tower reads."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from inference.errors import InvalidRequest, Unavailable
from inference.host.units import format_bytes
from inference.text.images.header import read_header
from inference.text.images.image_file import image_bytes
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.values.images import FittedImage, ImageLayout, check_image_size

DECODE_CPU_S = 6.0
DECODE_MEMORY_BYTES = 896 << 20
"""What a picture of ``MAX_IMAGE_PIXELS`` takes with transparency: four bytes a pixel, decoded, converted and turned."""
MAX_PIXEL_BYTES = 1 << 30
"""Most bytes of decoded pixels of all requests of a model that run or wait in it."""


class DecodedImage:
    """A picture as the tower reads it; shared by the requests that have it.

    Attributes:
        digest: SHA-256 of its file: equal pictures have equal embeddings.
        pixels: (canvas_height, canvas_width, 3) uint8.
        num_tokens: Tokens that it takes in a prompt.
    """

    __slots__ = ("__weakref__", "digest", "num_tokens", "pixels")

    def __init__(self, digest: bytes, pixels: NDArray[np.uint8], num_tokens: int) -> None:
        self.digest = digest
        self.pixels = pixels
        self.num_tokens = num_tokens


class ImageDecoder:
    """Decode pictures for one model in a child process; thread-safe.

    Args:
        layout: What pictures are brought to.
    """

    def __init__(self, layout: ImageLayout) -> None:
        self.layout = layout
        self._sandbox = Sandbox(
            "inference.text.images.child", memory_bytes=DECODE_MEMORY_BYTES, purpose="this model's image decoder"
        )
        self._lock = threading.Lock()
        self._decoded: WeakValueDictionary[bytes, DecodedImage] = WeakValueDictionary()

    def decode(self, part: Mapping[str, Any], where: str) -> DecodedImage:
        """The pixels of a picture, from memory if another request has it.

        Args:
            part: An ``ImagePart``.
            where: Its place, for the message.

        Raises:
            InvalidRequest: It is no picture, damaged, or exceeds a limit.
            Unavailable: The pictures of other requests take all room, or keep the child busy.
        """
        data = image_bytes(part.get("data"), where)
        digest = hashlib.sha256(data).digest()
        with self._lock:
            found = self._decoded.get(digest)
            if found is not None:
                return found
        header = read_header(data, where)
        check_image_size(*header.size, where)
        fit = self.layout.fit(*header.size)
        self._check_capacity(fit)
        try:
            reply = self._sandbox.call(
                {
                    "data": part["data"],
                    "format": header.format,
                    "stored_size": [header.stored_width, header.stored_height],
                    "orientation": header.orientation,
                    "fit": asdict(fit),
                    "resample": self.layout.resample,
                },
                cpu_s=DECODE_CPU_S,
                max_reply_bytes=1024 + 4 * fit.canvas_width * fit.canvas_height,  # four characters for three bytes
            )
        except SandboxFailure as failure:
            reason = " ".join(failure.reason().split())  # one line, whatever the decoder says
            raise InvalidRequest(
                f"{where}: the image can't be decoded: {reason}; send another file.", param=where
            ) from None
        shape = fit.canvas_height, fit.canvas_width, 3
        pixels = np.frombuffer(base64.b64decode(reply["pixels"]), dtype=np.uint8).reshape(shape)
        made = DecodedImage(digest, pixels, fit.num_tokens)
        with self._lock:
            return self._decoded.setdefault(digest, made)

    def close(self) -> None:
        """End the child."""
        self._sandbox.close()

    def _check_capacity(self, fit: FittedImage) -> None:
        needed = fit.canvas_width * fit.canvas_height * 3
        with self._lock:
            used = sum(image.pixels.nbytes for image in self._decoded.values())
        if used and used + needed > MAX_PIXEL_BYTES:
            raise Unavailable(
                f"the images of running requests take {format_bytes(used)}, and {format_bytes(needed)} more would "
                f"exceed {format_bytes(MAX_PIXEL_BYTES)}; try again shortly.",
                retry_after_s=5,
            )
