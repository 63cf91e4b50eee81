"""References to models of the hub."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from models_registry.hub_reference import HubReference, is_hub_reference


@pytest.mark.parametrize(
    ("text", "repo_id", "choice"),
    [
        ("org/name", "org/name", ""),
        ("org/name:latest", "org/name", ""),
        ("org/name:q4_k_m", "org/name", "Q4_K_M"),
        ("org/name:A-q8_0.gguf", "org/name", "A-q8_0.gguf"),
        ("org/name:Q8_0/a-00001-of-00002.gguf", "org/name", "Q8_0/a-00001-of-00002.gguf"),
    ],
)
def test_a_reference_is_read_and_written(text: str, repo_id: str, choice: str) -> None:
    found = HubReference.parse(text)
    assert (found.repo_id, found.choice) == (repo_id, choice)
    assert is_hub_reference(text) and HubReference.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "../x",
        "a/b/c",
        "/etc",
        "a b/c",
        "",
        "-a/b",
        "a/b\n",
        "a/b:",
        "a/b:../x.gguf",
        "a/b:/x.gguf",
        "a/b:c/d",
        "a/b:c d",
        f"a/b:{'x' * 300}",
        "a/b:x\n.gguf",
        "https://a/b",
    ],
)
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest):
        HubReference.parse(text)
    assert not is_hub_reference(text)


def test_an_id_without_an_owner_can_be_pulled_but_is_no_name_of_a_hub() -> None:
    assert HubReference.parse("gpt2").repo_id == "gpt2"
    assert not is_hub_reference("gpt2")
