"""``tekken.json`` against tiktoken with the same ranks, and damaged files."""

from __future__ import annotations

import json

import pytest
import splintr
import tiktoken
from hypothesis import HealthCheck, given, settings

from inference.errors import CorruptCheckpoint
from inference.text.tokenisation.tekken_file import read_tekken
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.text.tokenisation.file_vocabularies import TEXTS, write_tekken
from tests.inference.text.tokenisation.vocabularies import SAMPLES, TOKENS

PATTERN = splintr.O200K_BASE_PATTERN


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = write_tekken(tmp_path_factory.mktemp("tekken") / "tekken.json", TOKENS, PATTERN)
    library = tiktoken.Encoding(
        "x", pat_str=PATTERN, mergeable_ranks={token: rank for rank, token in enumerate(TOKENS)}, special_tokens={}
    )
    ours = load_tokenizer(TokenizerSpec("tekken", len(TOKENS) + 20, path=str(path)))
    yield library, ours
    ours.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=TEXTS)
def test_any_text_is_encoded_as_by_tiktoken_and_comes_back(pair, text):
    library, ours = pair
    for sample in (text, *SAMPLES[:3]):
        ids = ours.encode(sample)
        assert ids == [rank + 20 for rank in library.encode_ordinary(sample)]
        assert ours.decode(ids) == sample


def test_control_tokens_come_first_and_only_when_they_are_parsed(pair):
    _, ours = pair
    assert ours.encode("<s>[INST]hello[/INST]", parse_special=True) == [1, 3, 279, 4]
    assert not ours.special_ids & set(ours.encode("<s>[INST]hello[/INST]"))


def test_listed_control_tokens_and_ids(tmp_path):
    listed = [{"rank": rank, "token_str": text} for rank, text in enumerate(("<unk>", "<s>", "</s>", "[THINK]"))]
    found = read_tekken(write_tekken(tmp_path / "tekken.json", TOKENS, PATTERN, special_tokens=listed))
    assert found.vocabulary.tokens[:5] == ("<unk>", "<s>", "</s>", "[THINK]", "<SPECIAL_4>")
    assert found.ids == {"bos": 1, "eos": 2, "unknown": 0}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda content: content.pop("config"), "config"),
        (lambda content: content["vocab"].pop(), "261 tokens, 262 are stated"),
        (lambda content: content["vocab"][0].update(rank=9), "ranks of vocab"),
        (lambda content: content["vocab"][0].update(token_bytes="!"), "tekken.json"),
        (lambda content: content["vocab"][0].update(token_bytes="aGVsbG8="), "twice"),
        (lambda content: content["vocab"][0].update(token_bytes="aGVsbG9v"), "lacks the byte 0x00"),
        (lambda content: content["config"].update(default_vocab_size=-1), "sizes must be"),
        (lambda content: content["config"].update(pattern="x" * 5000), "at most 4096"),
        (lambda content: content.update(special_tokens=[{"rank": 99, "token_str": "x"}]), "ids are below 20"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, change, word):
    path = write_tekken(tmp_path / "tekken.json", TOKENS, PATTERN)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpoint, match=word):
        read_tekken(path)


@pytest.mark.parametrize("text", ["", "[]", "nothing", '{"config": 1}', "[" * 100_000])
def test_what_is_no_tekken_file_is_refused(tmp_path, text):
    path = tmp_path / "tekken.json"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint, match=r"no tekken\.json"):
        read_tekken(path)
