"""Write the text of untrusted files so that it changes no terminal and no log."""

from __future__ import annotations


def visible(text: str) -> str:
    """Text with control characters written as escapes, but for line feeds and tabs."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def printable(text: str) -> str:
    """Text on one line, with control characters and halves of surrogate pairs written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
