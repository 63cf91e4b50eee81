"""The page of families is what the registry says, and no decoder of transformers is forgotten."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from inference.modelling.families.registry import FAMILIES
from tests.checks.families import NO_DECODERS, PAGE, not_read, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.checks.families"


def test_every_decoder_of_transformers_is_read_or_listed_with_what_it_needs() -> None:
    left = set(not_read())
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(FAMILIES) - NO_DECODERS == left - set(FAMILIES)
    assert not left & set(FAMILIES), "read by now: remove it from NOT_READ"
    assert not NO_DECODERS & set(FAMILIES)
