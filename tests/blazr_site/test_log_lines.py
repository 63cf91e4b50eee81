"""Log records as JSON: one object a line, with what is known of the request."""

from __future__ import annotations

import contextvars
import json
import logging
import sys

from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st

from blazr_site.log_lines import BrokerOutage, JsonFormatter, LineFormatter, UnexpectedResponses, escape_controls
from inference.records.tracing import set_current_request_id


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    found = logging.LogRecord("inference.x", logging.WARNING, "x.py", 1, message, arguments, None)
    found.__dict__.update(extra)
    return found


@given(st.text())
def test_a_record_is_one_line_of_ascii_whatever_users_wrote(text):
    line = JsonFormatter().format(record("said %s", text))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"said {text}"


def test_request_facts_and_traceback_are_members():
    def formatted() -> str:
        set_current_request_id("chatcmpl-1")
        return JsonFormatter().format(record("ended", facts={"model": "tiny", "completion_tokens": 3}))

    shown = json.loads(contextvars.copy_context().run(formatted))
    assert shown["request_id"] == "chatcmpl-1"
    assert (shown["level"], shown["logger"], shown["model"]) == ("WARNING", "inference.x", "tiny")
    assert shown["completion_tokens"] == 3
    assert shown["time"].endswith("+00:00")
    try:
        raise ValueError("line\nbreak")
    except ValueError:
        broken = record("failed", exc_info=sys.exc_info())
    shown = json.loads(JsonFormatter().format(broken))
    assert "ValueError: line\nbreak" in shown["exception"]
    assert "request_id" not in shown


def test_keys_keep_their_secret_in_either_format():
    identifier, secret = "4fK2mZ81qXeB", "S" * 46
    text = f"refused blazr_{identifier}_{secret}, and again 'blazr_{identifier}_{secret}'"
    try:
        raise ValueError(text)
    except ValueError:
        broken = record("got %s", text, exc_info=sys.exc_info(), facts={"header": text})
    for formatter in (JsonFormatter(), LineFormatter("%(levelname)s %(message)s")):
        line = formatter.format(broken)
        assert "SSSS" not in line
        assert line.count(f"blazr_{identifier}_") >= 4


def test_answers_that_say_not_now_are_no_news():
    assert not UnexpectedResponses().filter(record("Service Unavailable: /readyz", status_code=503))
    assert UnexpectedResponses().filter(record("Internal Server Error: /v1/models", status_code=500))
    assert UnexpectedResponses().filter(record("something else"))
    loggers = settings.LOGGING["loggers"]
    assert loggers["django.request"]["filters"] == ["unexpected"]


@given(st.text())
def test_log_text_holds_no_control_character(text):
    escaped = escape_controls(text)
    assert all(ord(char) >= 32 and ord(char) not in range(0x7F, 0xA0) for char in escaped if char not in "\t\n")


def test_celery_logs_a_lost_broker_once_and_its_return_once():
    """The sentences of Celery's consumer and of beat, as they come during an outage."""
    outage = BrokerOutage()
    kept = []

    def log(level: int, message: str, *arguments: object, exc_info: object = None) -> None:
        record = logging.LogRecord("celery", level, "f", 1, message, arguments, exc_info)
        if outage.filter(record):
            kept.append(f"{record.levelname} {LineFormatter('%(message)s').format(record)}")

    log(logging.INFO, "Connected to %s", "redis://")
    log(logging.WARNING, "%s (%r)", "consumer: Connection to broker lost. Trying …", ConnectionError("gone"))
    for _ in range(30):
        log(logging.ERROR, "consumer: Cannot connect to %s: %s.\n%s\n", "redis://", "refused", "Trying again")
    log(logging.INFO, "Connected to %s", "redis://")
    for _ in range(3):
        log(logging.ERROR, "Message Error: %s\n%s", "refused", ["stack"])
    log(logging.DEBUG, "%s sent. id->%s", "sweep", "1")
    log(logging.DEBUG, "%s sent. id->%s", "sweep", "2")
    log(logging.ERROR, "another error")
    assert kept == [
        "WARNING the broker can't be reached: consumer: Connection to broker lost. Trying … (ConnectionError('gone'))",
        "WARNING the broker is reached again",
        "WARNING the broker can't be reached: Message Error: refused",
        "WARNING the broker is reached again",
        "ERROR another error",
    ]
