"""Creations: what is refused at once, and the template with a system prompt."""

from __future__ import annotations

import jinja2
import pytest

from inference.errors import BlazrError
from models_registry.creations import Creation, with_system

DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, "either files"),
        ({"name": "a b", "files": {"a": DIGEST}}, "name"),
        ({"files": {"a": DIGEST}, "template": "{{ if .System }}"}, "one of Go"),
        ({"files": {"a": DIGEST}, "quantize": "q5_1"}, "known are q8_0"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_read(values, match):
    with pytest.raises(BlazrError, match=match):
        Creation(**{"name": "new", **values})


@pytest.mark.parametrize("system", ["Be brief.", '"q" \\ {{ x }} {% y %}\n\tü 🙂 \\u0041', "it's"])
def test_a_system_prompt_goes_before_conversations_without_one(system):
    template = jinja2.Environment().from_string(
        with_system("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}", system)
    )
    user = {"role": "user", "content": "Hi"}
    assert template.render(messages=[user]) == f"[system|{system}][user|Hi]"
    for role in ("system", "developer"):
        own = {"role": role, "content": "own"}
        assert template.render(messages=[own, user]) == f"[{role}|own][user|Hi]"


def test_without_a_system_prompt_the_template_stays():
    assert with_system("{{ x }}", "") == "{{ x }}"
