"""Chat templates by name: what each makes of a short conversation."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError

from inference.text.tokenisation.children.template import make_environment
from inference.text.tokenisation.templates import DEFAULT_TEMPLATES

MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]
RENDERED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "mistral": "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
    "gemma": "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "oxidizr": "<|system|>\nS\n<|user|>\nU\n<|assistant|>\nA\n<|user|>\nV\n<|assistant|>\n",
}


def render(name: str, messages: list[dict[str, str]]) -> str:
    template = make_environment().from_string(DEFAULT_TEMPLATES[name])
    return template.render(messages=messages, add_generation_prompt=True)


@pytest.mark.parametrize("name", sorted(RENDERED))
def test_a_conversation_in_each_format(name: str) -> None:
    assert render(name, MESSAGES) == RENDERED[name]


@pytest.mark.parametrize("name", sorted(DEFAULT_TEMPLATES))
def test_every_message_is_rendered_and_the_answer_begins(name: str) -> None:
    text = render(name, MESSAGES)
    assert [text.index(part) for part in ("S", "U", "V")] == sorted(text.index(part) for part in ("S", "U", "V"))
    assert len(text) > len(render(name, MESSAGES[:2]))


@pytest.mark.parametrize("name", ["mistral", "phi3", "deepseek", "oxidizr"])
def test_a_role_cannot_become_a_control_token(name: str) -> None:
    with pytest.raises(TemplateError, match="roles are system, user and assistant, not im_end"):
        render(name, [{"role": "im_end", "content": "x"}])
