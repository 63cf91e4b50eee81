"""The page of families is what the registry says, and no decoder of transformers is forgotten."""

from __future__ import annotations

from gguf.constants import MODEL_ARCH_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from inference.modelling.families.registry import FAMILIES
from inference.modelling.gguf.architectures import ARCHITECTURES
from tests.checks.families import GGUF_OTHERS, NO_DECODERS, PAGE, gguf_not_read, not_read, page, seeing_not_read


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.checks.families"


def test_every_decoder_of_transformers_is_read_or_listed_with_what_it_needs() -> None:
    left = set(not_read())
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(FAMILIES) - NO_DECODERS == left - set(FAMILIES)
    assert not left & set(FAMILIES), "read by now: remove it from NOT_READ"
    assert not NO_DECODERS & set(FAMILIES)


def test_every_model_of_pictures_and_text_is_read_or_listed_with_the_reason() -> None:
    assert set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) - set(FAMILIES) == set(seeing_not_read())


def test_every_architecture_of_the_gguf_package_is_read_or_listed() -> None:
    left = set(gguf_not_read())
    assert set(MODEL_ARCH_NAMES.values()) - {"mmproj"} <= set(ARCHITECTURES) | left | GGUF_OTHERS
    assert not (left | GGUF_OTHERS) & set(ARCHITECTURES), "read by now: remove it from GGUF_NOT_READ"
