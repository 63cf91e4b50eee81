"""The text model's config and tensors of a model that sees pictures, and what is left out beside it."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.text_part import text_part
from tests.inference.modelling.families.headers import view_of

TENSORS = {"model.embed_tokens.weight": (8, 4), "visual.patch_embed.proj.weight": (4, 4)}


def test_a_text_model_within_another_has_its_keys_and_the_outer_ones_that_hold_for_it() -> None:
    view = view_of(
        TENSORS, {"model_type": "outer", "tie_word_embeddings": True, "text_config": {"model_type": "inner"}}
    )
    text = text_part(view)
    assert text.config.values == {"model_type": "inner", "tie_word_embeddings": True}
    assert text.is_part and text.changed(hidden_size=4).is_part


def test_a_model_that_is_text_alone_stays_as_it_is_and_leaves_nothing_out() -> None:
    view = view_of({"model.embed_tokens.weight": (8, 4)}, {"model_type": "inner"})
    assert text_part(view) is view and not view.facts.facts
    assert not view.is_part


@pytest.mark.parametrize("config", [{"model_type": "flat"}, {"text_config": {}}])
@pytest.mark.parametrize("reads_others", [False, True])
def test_what_is_left_out_is_a_fact(config: dict, reads_others: bool) -> None:
    view = view_of(TENSORS, config)
    text_part(view, reads_others=reads_others)
    expected = [] if reads_others else ["1 tensors beside the text model; pictures and sound aren't read"]
    assert [fact.evidence for fact in view.facts.facts if fact.name == "vision"] == expected


@pytest.mark.parametrize(("inner", "outer"), [(True, False), (False, True)])
def test_a_stored_head_decides_where_both_places_state_different_things(inner: bool, outer: bool) -> None:
    config = {"tie_word_embeddings": outer, "text_config": {"tie_word_embeddings": inner}}
    stored = TENSORS | {"language_model.lm_head.weight": (8, 4)}
    assert text_part(view_of(TENSORS, config)).config.get("tie_word_embeddings") is True
    assert text_part(view_of(stored, config)).config.get("tie_word_embeddings") is False


@pytest.mark.parametrize("odd", [[1], {"a": 1}, "yes"])
def test_an_odd_value_stays_for_its_reader(odd: object) -> None:
    config = {"tie_word_embeddings": odd, "text_config": {"tie_word_embeddings": True}}
    assert text_part(view_of(TENSORS, config)).config.get("tie_word_embeddings") == odd


def test_a_text_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match=r"text_config is '\[1\]'; it must be an object"):
        text_part(view_of(TENSORS, {"text_config": [1]}))
