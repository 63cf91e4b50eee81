"""Text of untrusted files in messages: what would change a terminal is written as an escape."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import BlazrError
from models_registry.detection.inspection import inspect_checkpoint
from models_registry.detection.printable import printable, visible
from tests.models_registry.detection.builders import LLAMA_CONFIG, write_json


def test_control_characters_are_written_as_escapes():
    assert printable("plain é 你好") == "plain é 你好"
    assert printable("a\x1b[2J\nb\u202ec\ud800\0") == r"a\x1b[2J\nb\u202ec\ud800\x00"


def test_line_feeds_and_tabs_of_a_models_text_stay():
    assert visible("a\tb\nc\x1b[2J\x07\r\x9b1m🙂") == "a\tb\nc\\x1b[2J\\x07\\r\\x9b1m🙂"


def test_messages_and_warnings_of_an_inspection_can_be_printed(llama: Path):
    for name in ("\x1b[2J", "\ud800", "a\nb"):
        write_json(llama / "config.json", {**LLAMA_CONFIG, name: 1})
        with pytest.raises(BlazrError) as caught:
            inspect_checkpoint(llama)
        assert printable(name) in caught.value.message
        assert caught.value.message.isprintable() and str(caught.value.param).isprintable()
