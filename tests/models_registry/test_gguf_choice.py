"""Which GGUF file of a repository is taken."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, NotFound, UnsupportedFormat
from models_registry.gguf_choice import (
    MAX_PARTS,
    choice_message,
    choose_model,
    default_model,
    gguf_models,
    ignored_gguf_files,
    reference_of,
)
from models_registry.hub_reference import HubReference

SIZES = {
    "Tiny-1B-Q2_K.gguf": 20,
    "Tiny-1B-Q4_K_M.gguf": 40,
    "Tiny-1B-UD-Q5_K_XL.gguf": 50,
    "Tiny-1B.IQ3_XXS.gguf": 30,
    "Tiny-1B-Q8_0/Tiny-1B-Q8_0-00001-of-00002.gguf": 45,
    "Tiny-1B-Q8_0/Tiny-1B-Q8_0-00002-of-00002.gguf": 35,
    "BF16/Tiny-1B-00001-of-00003.gguf": 100,
    "BF16/Tiny-1B-00003-of-00003.gguf": 100,
    "mmproj-Tiny-1B-f16.gguf": 5,
    "Tiny-1B.imatrix.gguf": 5,
    "../evil-Q4_K_M.gguf": 1,
    "config.json": 1,
}
MODELS = gguf_models(SIZES)


def choose(text: str) -> str:
    return choose_model(HubReference.parse(text), MODELS).name


def test_files_are_models_with_their_tags_and_parts() -> None:
    assert [(model.tag, model.size_bytes, len(model.files)) for model in MODELS] == [
        ("Q2_K", 20, 1), ("IQ3_XXS", 30, 1), ("Q4_K_M", 40, 1), ("UD-Q5_K_XL", 50, 1), ("Q8_0", 80, 2),
        ("BF16", 200, 2),
    ]  # fmt: skip
    assert MODELS[-1].missing == ("Tiny-1B-00002-of-00003.gguf",)
    assert ignored_gguf_files(list(SIZES)) == ["Tiny-1B.imatrix.gguf", "mmproj-Tiny-1B-f16.gguf"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", "Tiny-1B-Q4_K_M.gguf"),
        ("a/b:q2_k", "Tiny-1B-Q2_K.gguf"),
        ("a/b:Q5_K_XL", "Tiny-1B-UD-Q5_K_XL.gguf"),
        ("a/b:q8_0", "Tiny-1B-Q8_0/Tiny-1B-Q8_0-00001-of-00002.gguf"),
        ("a/b:tiny-1b-Q8_0-00002-of-00002.gguf", "Tiny-1B-Q8_0/Tiny-1B-Q8_0-00001-of-00002.gguf"),
        ("a/b:Tiny-1B.IQ3_XXS.gguf", "Tiny-1B.IQ3_XXS.gguf"),
    ],
)
def test_a_choice_is_found(text: str, name: str) -> None:
    assert choose(text) == name


def test_what_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(NotFound, match=r"the tag Q6_K, which it doesn't have; there are Q2_K, IQ3_XXS, Q4_K_M, UD-Q5"):
        choose("a/b:Q6_K")
    with pytest.raises(NotFound, match=r"the file other\.gguf, which it doesn't have; there are Tiny-1B-Q2_K\.gguf"):
        choose("a/b:other.gguf")
    with pytest.raises(MissingTensor, match=r"lacks 1 of the parts of .*: Tiny-1B-00002-of-00003\.gguf"):
        choose("a/b:BF16")
    with pytest.raises(NotFound, match="has no GGUF files; name the repository alone"):
        choose_model(HubReference.parse("a/b:Q4_K_M"), [])


def test_two_files_of_a_tag_are_named_by_their_files() -> None:
    models = gguf_models({"x-Q4_0.gguf": 1, "y-Q4_0.gguf": 2, "z-F16.gguf": 3})
    with pytest.raises(NotFound, match="the tag Q4_0, which several files have") as found:
        choose_model(HubReference.parse("a/b:Q4_0"), models)
    assert "x-Q4_0.gguf, y-Q4_0.gguf; name one of them with a/b:FILE.gguf." in found.value.message
    assert [str(reference_of("a/b", model, models)) for model in models] == [
        "a/b:x-Q4_0.gguf", "a/b:y-Q4_0.gguf", "a/b:F16",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tags", "taken"),
    [
        (("F16", "Q8_0", "Q4_K_M"), "Q4_K_M"),
        (("F16", "Q8_0", "Q4_0", "Q2_K"), "Q4_0"),
        (("F16", "Q8_0", "Q2_K"), "Q8_0"),
        (("F16", "Q2_K"), "Q2_K"),
        (("f16", "unheard"), "F16"),
    ],
)
def test_the_default_model(tags: tuple[str, ...], taken: str) -> None:
    assert default_model(gguf_models({f"m-{tag}.gguf": 1 for tag in tags})).tag == taken


def test_a_choice_that_was_left_open_is_said() -> None:
    reference, chosen = HubReference.parse("a/b"), choose_model(HubReference.parse("a/b"), MODELS)
    words = choice_message(reference, chosen, MODELS)
    assert words.startswith("a/b has 6 GGUF models; Tiny-1B-Q4_K_M.gguf is taken. For another one name a/b:TAG; there")
    assert choice_message(HubReference.parse("a/b:Q4_K_M"), chosen, MODELS) == ""
    assert choice_message(reference, chosen, [chosen]) == ""


def test_many_models_with_missing_parts_cost_little() -> None:
    """A repository may name any files: nothing grows with the parts that aren't there."""
    sizes = {f"m{number}-00001-of-04096.gguf": 100 for number in range(5000)}
    models = gguf_models(sizes)
    assert len(models) == 5000
    assert {(model.num_missing, len(model.missing)) for model in models} == {(4095, 3)}


def test_a_model_of_too_many_parts_is_refused() -> None:
    """Such models were left out, and the repository was said to have no GGUF files."""
    most, more = MAX_PARTS, MAX_PARTS + 1
    sizes = {f"m-Q8_0-{number:05d}-of-{most:05d}.gguf": 1 for number in range(1, most + 1)}
    assert choose_model(HubReference.parse("a/b"), gguf_models(sizes)).num_parts == most
    models = gguf_models({**sizes, f"m-Q4_K_M-00001-of-{more:05d}.gguf": 1})
    assert default_model(models).tag == "Q8_0"
    with pytest.raises(UnsupportedFormat, match=rf"has {more} parts, the limit is {most}; choose another file, or joi"):
        choose_model(HubReference.parse("a/b:Q4_K_M"), models)
