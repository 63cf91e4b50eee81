"""Format each log record as one line, without control characters and without secrets of API keys.

Escaped control characters of user-written text can't forge records or control a terminal.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from inference.records import tracing
from inference.values.principal import without_keys

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class UnexpectedResponses(logging.Filter):
    """Drops Django's log lines about 503, because readiness probes get 503 regularly, once a second."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return getattr(record, "status_code", None) != HTTPStatus.SERVICE_UNAVAILABLE


class BrokerOutage(logging.Filter):
    """Keeps one of Celery's lines when the broker is lost, and one when it is back; drops the attempts in between."""

    _LOST = ("Connection to broker lost", "Cannot connect to", "Connection error", "Message Error")
    _BACK = ("Connected to ", " sent. id->")
    # Celery's advice at each loss, about a setting that settings.celery sets.
    _ADVICE = "worker_cancel_long_running_tasks_on_connection_loss"

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._is_away = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; its text becomes one line."""
        message = record.getMessage()
        if self._ADVICE in message:
            return False
        was_away = self._is_away
        if any(phrase in message for phrase in self._LOST):
            self._is_away = True
            _reword(record, f"the broker can't be reached: {message.partition(chr(10))[0]}")
            return not was_away
        if any(phrase in message for phrase in self._BACK):
            self._is_away = False
            _reword(record, "the broker is reached again")
            return was_away
        return record.levelno >= logging.WARNING


def _reword(record: logging.LogRecord, message: str) -> None:
    record.msg, record.args, record.exc_info = message, (), None
    record.levelno, record.levelname = logging.WARNING, "WARNING"


class LineFormatter(logging.Formatter):
    """Escapes control characters; the lines of a traceback are indented, so that records can be told apart."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the message itself on one line."""
        line = without_keys(super().formatMessage(record))
        return escape_controls(line.replace("\n", "\\n").replace("\t", "\\t"))

    def formatException(self, ei: object) -> str:
        """Indent the traceback below its record."""
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join("    " + escape_controls(without_keys(line)) for line in lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object in ASCII: time, level, logger, message.

    Further members, where known: the request, its trace, the record's own fields, the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        shown: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        about = {"request_id": tracing.current_request_id(), "trace_id": tracing.trace_id_current()}
        shown |= {name: value for name, value in about.items() if value is not None}
        shown |= getattr(record, "facts", {})
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            shown["stack"] = record.stack_info
        return without_keys(json.dumps(shown, default=str))


def escape_controls(text: str) -> str:
    """Replace control characters, line breaks included, by their escapes."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
