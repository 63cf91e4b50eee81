"""Chat templates of several families, to render; sources are the model cards of the families."""

from __future__ import annotations

from collections.abc import Mapping

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_LLAMA3 = (
    "{{ bos_token | default('<|begin_of_text|>') }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

_MISTRAL = (
    "{{ bos_token | default('<s>') }}"
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{% set ns.system = ns.system + message.content + '\\n\\n' %}"
    "{% elif message.role == 'user' %}{{ '[INST] ' + ns.system + message.content + ' [/INST]' }}"
    "{% set ns.system = '' %}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content }}"
    "{% if add_generation_prompt or not loop.last %}{{ eos_token | default('</s>') }}{% endif %}"
    "{% else %}{{ raise_exception('roles are system, user and assistant, not ' + message.role) }}"
    "{% endif %}{% endfor %}"
)

# A role that is written into a control token must be one of the known ones: "im_end" would make another token.
_KNOWN_ROLES = (
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant, not ' + message.role) }}"
    "{% endif %}"
)

_PHI3 = (
    "{% for message in messages %}"
    + _KNOWN_ROLES
    + "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

_GEMMA = (
    "{{ bos_token | default('<bos>') }}"
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{% set ns.system = ns.system + message.content + '\\n\\n' %}"
    "{% else %}"
    "{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' }}"
    "{% set ns.system = '' %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

_DEEPSEEK = (
    "{{ bos_token | default('<｜begin▁of▁sentence｜>') }}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}"
    "{% elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}"
    "{% elif message.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message.content + (eos_token | default('<｜end▁of▁sentence｜>')) }}"
    "{% else %}{{ raise_exception('roles are system, user and assistant, not ' + message.role) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)

_OXIDIZR = (
    "{{ bos_token | default('') }}"
    "{% for message in messages %}" + _KNOWN_ROLES + "{{ '<|' + message.role + '|>\\n' + message.content + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

FAMILY_TEMPLATES: Mapping[str, str] = {
    "chatml": _CHATML,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    "phi3": _PHI3,
    "gemma": _GEMMA,
    "deepseek": _DEEPSEEK,
    "oxidizr": _OXIDIZR,
}
"""Name to Jinja source."""
