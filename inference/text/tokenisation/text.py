"""Check text before it is encoded."""

from __future__ import annotations

from inference.errors import InvalidRequest


def check_text(text: object, param: str) -> str:
    """The text, if it can be encoded as UTF-8 and stored.

    Raises:
        InvalidRequest: Not a string; a lone surrogate (half of a UTF-16 pair); a NUL.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{param} must be a string, got {type(text).__name__}.", param=param)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
            "send valid Unicode.",
            param=param,
        ) from None
    position = text.find("\0")
    if position >= 0:
        raise InvalidRequest(f"{param} has a NUL at character {position}; remove it.", param=param)
    return text
