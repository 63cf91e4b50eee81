"""Write the text of untrusted files so that it changes no terminal and no log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text on one line, with control characters and halves of surrogate pairs written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
