"""One log record, one line: control characters of user-written text can't forge records or drive a terminal."""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """Escapes control characters; a traceback keeps its line breaks, indented, so that a record stays recognisable."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the message itself on one line."""
        return escape_controls(super().formatMessage(record).replace("\n", "\\n").replace("\t", "\\t"))

    def formatException(self, ei: object) -> str:
        """Indent the traceback below its record."""
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join("    " + escape_controls(line) for line in lines)


def escape_controls(text: str) -> str:
    """Replace control characters, line breaks included, by their escapes."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
