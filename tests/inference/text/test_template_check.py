"""Checks of chat templates: published ones pass, broken and careless ones get the sentence that names the fault."""

from __future__ import annotations

import time

import pytest

from inference.errors import InvalidRequest
from inference.text.template_check import MAX_PREVIEW_TOKENS, TemplateCheck, check_template, require_usable
from inference.text.tokenisation.chat_template import MAX_CHARS_PER_TOKEN, MAX_TEMPLATE_CHARS
from tests.inference.text.tokenisation.family_templates import FAMILY_TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
START = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def check(source: str) -> TemplateCheck:
    return check_template(source, TOKENS)


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_published_templates_are_usable_and_show_the_conversation(name: str) -> None:
    found = check(FAMILY_TEMPLATES[name])
    assert found.errors == []
    # Mistral's prompts end with the mark of a user's message, with and without add_generation_prompt.
    assert len(found.warnings) == (name == "mistral")
    assert found.preview is not None
    for text in ("navigator", "Which star is over the pole?", "Polaris", "get_weather", "-4 degrees"):
        assert text in found.preview


def test_a_template_without_faults_has_no_problems() -> None:
    found = check(PLAIN + START)
    assert found.problems == ()
    assert found.preview is not None and found.preview.endswith("<|assistant|>")
    require_usable(found)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n{% if %}", "line 2: Expected an expression"),
        ("{% for m in messages %}", "line 1: Unexpected end of template"),
        ("{{ messages | shout }}", "line 1: No filter named 'shout'"),
        ("{% do messages %}", "line 1: Encountered unknown tag 'do'"),
        (PLAIN + "{% include 'other' %}", "{% include %} is refused"),
        (PLAIN + "{{ lipsum() }}", "lipsum() isn't given"),
        (PLAIN + "{% if false %}{{ messages.pop() }}{% endif %}", ".pop() is refused"),
        (PLAIN + "{% if false %}{{ messages.__class__ }}{% endif %}", "__class__ is refused"),
        ("{{ bos_token }}", "it loses the messages of the user"),
        ("{{ raise_exception('not today') }}", "can't render a message of the user: not today"),
        (LOOP, "it takes too long"),
        ("{{ 'x' * 99999 }}", "the text is longer than 98304 characters"),
        ("{{ 'x' * 9999999999 }}", "it needs too much memory"),
        ("x" * (MAX_TEMPLATE_CHARS + 1), f"the limit is {MAX_TEMPLATE_CHARS}"),
    ],
)
def test_what_can_not_be_used_is_an_error_with_its_reason(source: str, message: str) -> None:
    started = time.monotonic()
    found = check(source)
    assert any(message in error for error in found.errors), found.errors
    assert time.monotonic() - started < 40
    with pytest.raises(InvalidRequest) as caught:
        require_usable(found)
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (PLAIN, "it ignores add_generation_prompt"),
        (PLAIN.replace("messages", "messages[-1:]") + START, "it loses the system message"),
        (PLAIN.replace("messages", "messages if m.role != 'assistant'") + START, "it loses earlier answers"),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN + START,
         "it refuses a conversation with a system message: no system"),
        (PLAIN + START + "{{ colour }}", "line 2: colour is only set if a request has it in chat_template_kwargs"),
        (PLAIN + START + "{{ pad_token }}", "line 2: the tokenizer has no pad_token"),
        (PLAIN + START + "{% if tools %}{% endif %}", "it loses tools"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + PLAIN + START,
         "it refuses a tool call: no tools"),
    ],
)  # fmt: skip
def test_what_may_not_be_meant_is_a_warning(source: str, message: str) -> None:
    found = check(source)
    assert found.errors == []
    assert any(message in warning for warning in found.warnings), found.warnings
    require_usable(found)


def test_names_that_are_tested_or_set_somewhere_are_no_problem() -> None:
    source = "{% if today is defined %}{{ today() }}{% endif %}{% if true %}{% set role = 'x' %}{% endif %}{{ role }}"
    assert check(source + PLAIN + START).problems == ()


def test_the_preview_is_bounded_and_goes_as_far_as_the_template() -> None:
    refuses_tools = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    found = check(refuses_tools + PLAIN + START + "{% if tools %}{% endif %}")
    assert found.preview is not None and "Polaris" in found.preview and "get_weather" not in found.preview
    assert found.to_dict()["problems"][0].keys() == {"level", "message", "line"}
    longest = MAX_PREVIEW_TOKENS * MAX_CHARS_PER_TOKEN
    assert check(f"{{{{ 'x' * {longest + 1} }}}}").preview is None
