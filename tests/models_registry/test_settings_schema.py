"""Model settings are checked by one table."""

import math

import pytest

from inference.errors import InvalidRequest
from models_registry.settings_schema import MODEL_SETTINGS, shown, validate_settings


def test_legal_values_pass_and_null_means_default() -> None:
    values = {"dtype": "bfloat16", "max_model_len": 4096, "keep_alive_s": -1, "max_num_seqs": None}
    assert validate_settings(values) == {"dtype": "bfloat16", "max_model_len": 4096, "keep_alive_s": -1}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"dtype": "int3"}, "one of auto"),
        ({"dtype": 32}, "one of auto"),
        ({"state_dtype": "float16"}, "state_dtype is .float16.; it must be one of auto, float32, bfloat16"),
        ({"max_model_len": 0}, "from 1"),
        ({"max_model_len": 1.5}, "an integer"),
        ({"max_model_len": "512"}, "a number"),
        ({"max_num_seqs": True}, "is true; it must be a number"),
        ({"dtype": False}, "is false; it must be one of auto"),
        ({"max_model_len": 1 << 25}, "is 33554432; it must be from 1 to 16777216[.]"),
        ({"keep_alive_s": -2.5}, "is -2.5; it must be from 0 to 31536000 [(]or -1[)][.]"),
        ({"max_num_seqs": 4097}, "to 4096"),
        ({"keep_alive_s": -2}, "or -1"),
        ({"keep_alive_s": math.nan}, "a number"),
        ({"keep_alive_s": math.inf}, "a number"),
        ({"temperature": 1}, "not a model setting"),
        ({"speculative": "eagle"}, 'must be "ngram"'),
        ({"speculative": {"method": "draft"}}, "needs draft_model"),
        ({"speculative": 4}, "must be an object"),
    ],
)
def test_everything_else_is_refused_by_name(values: dict, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as caught:
        validate_settings(values)
    assert caught.value.param == next(iter(values))


def test_guessing_is_given_as_a_line_or_an_object_and_stored_as_an_object() -> None:
    stored = {"speculative": {"method": "draft", "draft_model": "small", "num_tokens": 3}}
    assert validate_settings({"speculative": "draft:small,k=3"}) == stored
    assert validate_settings(stored) == stored
    setting = next(setting for setting in MODEL_SETTINGS if setting.name == "speculative")
    assert shown(setting, stored["speculative"]) == "draft:small,k=3"
    assert shown(setting, None) is None


def test_the_context_bounds_the_sequence_length() -> None:
    with pytest.raises(InvalidRequest, match="has 128 positions"):
        validate_settings({"max_model_len": 129}, max_position_embeddings=128)
    assert validate_settings({"max_model_len": 128}, max_position_embeddings=128) == {"max_model_len": 128}


def test_every_setting_explains_itself() -> None:
    assert all(setting.label and setting.help.endswith(".") for setting in MODEL_SETTINGS)
