"""Write reasoning into ``encrypted_content``, from which a client returns it without storing the response.

Clients that keep no reasoning text (Codex, AI SDK) send this member back. It hides nothing: the item's ``content`` has
the same text.
"""

from __future__ import annotations

import base64
import binascii

from inference.errors import InvalidRequest

INCLUDE = "reasoning.encrypted_content"
_PREFIX = "blazr."


def encoded_reasoning(text: str) -> str:
    """Return the ``encrypted_content`` for a text."""
    return _PREFIX + base64.b64encode(text.encode()).decode("ascii")


def decoded_reasoning(value: str, param: str) -> str:
    """Return the text of an ``encrypted_content``.

    Raises:
        InvalidRequest: Another server has written it.
    """
    try:
        if value.startswith(_PREFIX):
            return base64.b64decode(value[len(_PREFIX) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise InvalidRequest(f"{param} was written by another server, whose reasoning can't be read; remove the item.",
                         param=param)  # fmt: skip
