"""SamplingParams: ranges of the further samplers, what excludes what, and the way through a message."""

from __future__ import annotations

import json
import math

import pytest

from inference.errors import InvalidSamplingParams
from inference.values.sampling_params import SamplingParams

FURTHER = {
    "typical_p": 0.9, "top_n_sigma": 1.5, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "dry_multiplier": 0.8,
    "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ("\n", "##"),
    "xtc_probability": 0.5, "xtc_threshold": 0.2,
}  # fmt: skip


def refused(**values) -> InvalidSamplingParams:
    with pytest.raises(InvalidSamplingParams) as caught:
        SamplingParams.from_dict(values)
    return caught.value


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("typical_p", 1.1), ("typical_p", -0.1), ("top_n_sigma", -2), ("top_n_sigma", math.nan),
        ("dynatemp_range", 2.5), ("dynatemp_exponent", -1), ("mirostat", 3), ("mirostat", 1.0), ("mirostat", True),
        ("mirostat_tau", -1), ("mirostat_eta", 1.5), ("dry_multiplier", -1), ("dry_base", 0.5),
        ("dry_allowed_length", 0), ("dry_penalty_last_n", -2), ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", [1]), ("dry_sequence_breakers", ["x"] * 65),
        ("dry_sequence_breakers", ["x" * 41]), ("xtc_probability", 1.5), ("xtc_threshold", math.inf),
        ("xtc_threshold", "0.1"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(name, wrong):
    error = refused(**{name: wrong})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(pytest.param("n", wrong, id=f"CVE-2026-34756: {wrong}") for wrong in (10**9, 2**63, 0, -1)),
        *(
            pytest.param(name, wrong, id=f"CVE-2026-54235: {name} {wrong}")
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
            for wrong in (math.nan, math.inf, -math.inf)
        ),
        pytest.param("logit_bias", {1: math.nan}, id="CVE-2026-54235: logit_bias"),
        *(pytest.param("min_tokens", wrong, id=f"CVE-2026-114051: {wrong}") for wrong in (-1, 2**31, True, 1.5)),
        *(
            pytest.param(name, wrong, id=f"CVE-2026-116173: {name} {wrong}")
            for name in ("logprobs", "prompt_logprobs")
            for wrong in (-1, 2**31, True, "5")
        ),
        pytest.param("logit_bias", {-1: 1.0}, id="CVE-2026-93840: below the vocabulary"),
        pytest.param("stop_token_ids", (-1,), id="CVE-2026-93989: below the vocabulary"),
    ],
)
def test_values_that_ended_other_servers_are_refused_here_too(name, wrong):
    """A worker reads its messages through this, whatever a web process has let through."""
    error = refused(**{name: wrong})
    assert error.param == name
    assert name in error.message


def test_a_message_carries_them_all():
    for values in (FURTHER, {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}, {"dry_sequence_breakers": ()}):
        params = SamplingParams(**values)
        assert SamplingParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params
    assert SamplingParams().to_dict() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_k", 40), ("top_p", 0.9), ("min_p", 0.1), ("typical_p", 0.5), ("top_n_sigma", 1.0), ("xtc_probability", 0.1),
     ("dynatemp_range", 0.2)],
)  # fmt: skip
def test_mirostat_excludes_what_truncates(name, value):
    error = refused(mirostat=2, **{name: value})
    assert error.param == name
    assert "mirostat" in error.message and "leave" in error.message
    assert SamplingParams.from_dict({"mirostat": 0, name: value}).mirostat == 0
    assert SamplingParams(mirostat=1, dry_multiplier=0.8, repetition_penalty=1.1, seed=3).uses_chain


def test_what_makes_a_draw_use_the_chain():
    for name in ("typical_p", "top_n_sigma", "dynatemp_range", "xtc_probability"):
        assert SamplingParams(**{name: FURTHER[name]}).uses_chain
    off = SamplingParams(typical_p=0.0, top_n_sigma=-1.0, dry_multiplier=1.0, xtc_threshold=0.3, mirostat_tau=1.0)
    assert not off.uses_chain
