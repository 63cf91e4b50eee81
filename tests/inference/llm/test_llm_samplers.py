"""The further samplers in a real tiny network: seeded, the same in any batch, under grammars, with logprobs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from inference.llm.llm import LLM
from tests.inference.llm.harness import OPTIONS, Checkpoint, deltas, ids_of, message, run, text_of

SAMPLERS = {
    "typical_p": {"typical_p": 0.7},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "dynatemp": {"dynatemp_range": 0.8},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0},
    "dry": {"dry_multiplier": 1.0, "dry_sequence_breakers": ["e", "\n"]},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.02},
    "plain": {"top_p": 0.9},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    checkpoint = Checkpoint(tmp_path_factory.mktemp("checkpoint"))
    loaded = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, max_num_seqs=32))
    yield loaded
    loaded.close()


def asked(name: str, **values):
    return message(name, seed=11, temperature=0.9, max_tokens=30, **SAMPLERS[name], **values)


def test_each_request_says_the_same_alone_and_together(llm):
    alone = {name: ids_of(run(llm, asked(name))[name]) for name in SAMPLERS}
    together = run(llm, *[asked(name) for name in reversed(SAMPLERS)])
    assert {name: ids_of(events) for name, events in together.items()} == alone
    assert len({tuple(token_ids) for token_ids in alone.values()}) > 5


@pytest.mark.parametrize("name", SAMPLERS)
def test_grammars_choices_and_logprobs_go_with_them(llm, name):
    wanted = {"kind": "regex", "value": "[a-z]{12}"}
    events = run(llm, asked(name, grammar=wanted, n=2, logprobs=2, ignore_eos=False))[name]
    for choice in range(2):
        assert re.fullmatch("[a-z]{12}", text_of(events, choice))
        entries = [entry for event in deltas(events, choice) for entry in event["logprobs"]]
        assert len(entries) == len(ids_of(events, choice))
        assert all(len(entry["top"]) == 2 and entry["logprob"] <= 0 for entry in entries)


def test_the_same_from_a_later_attempt(llm):
    """But for mirostat, whose state isn't in the message."""
    for name in SAMPLERS:
        if not name.startswith("mirostat"):
            whole = ids_of(run(llm, asked(name))[name])
            again = run(llm, asked(name, attempt=1, delivered=[whole[:13]]))[name]
            assert ids_of(again) == whole[13:], name


def test_dry_ends_a_loop(llm):
    """A bias that leaves three tokens makes the greedy output repeat itself; DRY doesn't let it."""
    bias = {str(token_id): 60.0 for token_id in llm.tokenizer.encode("abc", add_special_tokens=False)}
    plain, dry = (
        ids_of(run(llm, message(temperature=0.0, max_tokens=60, logit_bias=bias, **values))["r"])
        for values in ({}, {"dry_multiplier": 5.0})
    )

    def longest_repeat(token_ids):
        return max(
            length for length in range(len(token_ids))
            for start in range(len(token_ids) - length)
            if any(token_ids[start : start + length] == token_ids[other : other + length]
                   for other in range(start + 1, len(token_ids) - length + 1))
        )  # fmt: skip

    assert longest_repeat(dry) < longest_repeat(plain)
