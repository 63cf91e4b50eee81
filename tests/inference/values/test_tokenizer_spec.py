"""A tokenizer's description survives the database, and one that an earlier version stored is read."""

from __future__ import annotations

import json

from inference.values.tokenizer_spec import TokenizerSpec

FOUND = TokenizerSpec(
    "huggingface",
    300,
    path="/models/a/tokenizer.json",
    bos_token_id=1,
    eos_token_ids=(2, 3),
    chat_template="{{ messages }}",
    chat_template_origin="set by a person",
    own_chat_template="{{ 'own' }}",
    special_tokens=(("bos_token", "<s>"),),
    added_tokens=(("<s>", 1), ("</s>", 2)),
)


def test_json_and_back():
    assert TokenizerSpec.from_dict(json.loads(json.dumps(FOUND.to_dict()))) == FOUND


def test_an_earlier_version_stored_fewer_fields():
    stored = FOUND.to_dict()
    for name in ("own_chat_template", "special_tokens", "added_tokens"):
        del stored[name]
    found = TokenizerSpec.from_dict(stored)
    assert (found.own_chat_template, found.special_tokens, found.added_tokens) == (None, (), ())
    assert (found.path, found.eos_token_ids) == (FOUND.path, FOUND.eos_token_ids)


def test_a_field_of_a_later_version_is_left_aside():
    assert TokenizerSpec.from_dict({**FOUND.to_dict(), "of_a_later_version": 1}) == FOUND
