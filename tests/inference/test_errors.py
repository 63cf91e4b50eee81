"""Errors: the words that client libraries look for, and the way through a message and back."""

from __future__ import annotations

import pytest

from inference.errors import BlazrError, EngineError, PromptTooLong


@pytest.mark.parametrize(
    ("error", "message", "param"),
    [
        (
            PromptTooLong.of(4097, 3927, 1000, noun="messages"),
            "This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (3927 in the "
            "messages, 1000 in the completion). Please reduce the length of the messages or completion.",
            "max_tokens",
        ),
        (
            PromptTooLong.of(128, 5210, 16),
            "This model's maximum context length is 128 tokens. However, you requested 5226 tokens (5210 in the "
            "prompt, 16 in the completion). Please reduce the length of the prompt or completion.",
            "prompt",
        ),
        (
            PromptTooLong.of(128, 128, noun="messages"),
            "This model's maximum context length is 128 tokens. However, your messages resulted in 128 tokens. "
            "Please reduce the length of the messages.",
            "messages",
        ),
        (
            PromptTooLong.of(8, 9, 0, noun="input 2", param="input"),
            "This model's maximum context length is 8 tokens. However, your input 2 resulted in 9 tokens. "
            "Please reduce the length of the input 2.",
            "input",
        ),
        (
            PromptTooLong.of_chars(8, 90000),
            "This model's maximum context length is 8 tokens. However, your prompt resulted in 90000 characters, "
            "which is more than 8 tokens can encode. Please reduce the length of the prompt.",
            "prompt",
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_worded_as_openai_words_it(error, message, param):
    assert error.to_openai() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": "context_length_exceeded",
        }
    }
    assert error.http_status == 400


def test_errors_cross_processes_as_what_they_are():
    error = PromptTooLong.of(8, 9, 4)
    found = BlazrError.from_dict(error.to_dict())
    assert type(found) is PromptTooLong
    assert (found.message, found.param) == (error.message, error.param)
    assert type(BlazrError.from_dict({"class": "Nonsense", "message": "x"})) is EngineError
