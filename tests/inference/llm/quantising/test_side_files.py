"""What lies beside written weights: the config of a GGUF file, and tokenizers from wherever they came."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from inference.demo.paths import PREBUILT_DIRECTORY
from inference.errors import CorruptCheckpoint
from inference.llm.quantising.side_files import side_files
from inference.llm.quantising.writing import write_checkpoint
from inference.modelling.gguf.vocabulary_file import VOCABULARY_FILE
from inference.text.tokenisation.tokenizer import load_tokenizer
from inference.values.tokenizer_spec import TokenizerSpec
from models_registry.detection.child import inspect_in_child
from models_registry.detection.inspection import Inspection
from tests.inference.llm.quantising.checkpoints import inspect, tensors_of
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.ggjt_writer import convert_to_ggjt, llama_tokens
from tests.inference.modelling.huggingface import make_checkpoint
from tests.models_registry.detection.builders import copy_bare_demo

TEXT = "ab a: äb <|user|> def f(x):\n    return x + 1"
CONFIG = transformers.LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, rms_norm_eps=5e-6, tie_word_embeddings=False,
)  # fmt: skip


def written(source: Inspection, target: Path) -> Inspection:
    """Write a checkpoint with its weights as they are."""
    write_checkpoint(
        target, side_files(source), tensors_of(source), source.spec, {}, {}.__getitem__, measured={}, plan={}
    )
    return inspect(target)


def same_text(found: TokenizerSpec, expected: TokenizerSpec) -> bool:
    """Whether two tokenizers read and write a text alike, and have the same control tokens and template."""
    first, second = load_tokenizer(found), load_tokenizer(expected)
    try:
        ids = first.encode(TEXT, parse_special=True)
        assert ids == second.encode(TEXT, parse_special=True)
        assert first.decode(ids) == second.decode(ids)
        assert first.special_ids == second.special_ids
    finally:
        first.close()
        second.close()
    assert set(found.eos_token_ids) == set(expected.eos_token_ids)
    assert (found.bos_token_id, found.chat_template) == (expected.bos_token_id, expected.chat_template)
    return True


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    return copy_bare_demo(tmp_path / "bare")


def test_files_of_a_plain_checkpoint_are_copied(tmp_path: Path) -> None:
    source = inspect(PREBUILT_DIRECTORY)
    found = side_files(source)
    assert (set(found.others), found.made) == (set(source.other_files), {})
    assert same_text(written(source, tmp_path / "out").tokenizer, source.tokenizer)


def test_a_ggjt_files_vocabulary(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIG, tmp_path / "made")
    path = convert_to_ggjt(directory, tmp_path / "llama.ggmlv3.q8_0.bin", "Q8_0", tokens=llama_tokens(300))
    source = inspect(path)
    again = written(source, tmp_path / "out")
    assert again.tokenizer.path == str(tmp_path / "out" / VOCABULARY_FILE)
    assert again.spec.layers == source.spec.layers
    assert same_text(again.tokenizer, source.tokenizer)


def test_a_split_gguf_file(tmp_path: Path) -> None:
    directory, _ = make_checkpoint(CONFIG, tmp_path / "made")
    whole = inspect(convert(directory, tmp_path / "m.gguf", "Q8_0"))
    again = written(whole, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json", "model.safetensors", "quantisation.json", VOCABULARY_FILE,
    }  # fmt: skip
    assert again.tokenizer.eos_token_ids == whole.tokenizer.eos_token_ids


def test_a_borrowed_tokenizer_is_copied(bare: Path, tmp_path: Path) -> None:
    lender = shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "lender")
    (bare / "tokenizer_config.json").write_text('{"eos_token": "no"}')
    (bare / "generation_config.json").write_text('{"temperature": 0.5}')
    source = inspect_in_child(bare, {"tokenizer_from": str(lender)})
    again = written(source, tmp_path / "out")
    shutil.rmtree(lender)
    assert again.tokenizer.path == str(tmp_path / "out" / "tokenizer.json")
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["temperature"] == 0.5
    shutil.copytree(PREBUILT_DIRECTORY, lender)
    assert same_text(again.tokenizer, source.tokenizer)


@pytest.mark.parametrize("overrides", [{"vocabulary": "FILE"}, {"vocabulary": "FILE", "chat_template": "{{ 1 }}"}])
def test_a_chosen_vocabulary_is_copied(bare: Path, overrides: dict[str, Any], tmp_path: Path) -> None:
    (bare / "tekken.json").write_text("not read")
    path = tmp_path / "elsewhere.json"
    shutil.copy(PREBUILT_DIRECTORY / "tokenizer.json", path)
    source = inspect_in_child(bare, overrides | {"vocabulary": str(path)})
    again = written(source, tmp_path / "out")
    assert not (tmp_path / "out" / "tekken.json").exists()
    assert same_text(again.tokenizer, source.tokenizer)


def test_a_chosen_builtin_vocabulary_is_stated(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**CONFIG.to_diff_dict() | {"vocab_size": 100_500})
    directory, _ = make_checkpoint(config, tmp_path / "made")
    shutil.copy(PREBUILT_DIRECTORY / "tokenizer.json", directory / "tokenizer.json")
    source = inspect_in_child(directory, {"vocabulary": "cl100k_base"})
    again = written(source, tmp_path / "out")
    assert (again.tokenizer.kind, again.tokenizer.name) == ("builtin", "cl100k_base")
    assert replace(again.tokenizer, special_tokens=()) == replace(source.tokenizer, special_tokens=())


def test_a_lender_that_is_gone_is_named(bare: Path, tmp_path: Path) -> None:
    lender = shutil.copytree(PREBUILT_DIRECTORY, tmp_path / "lender")
    source = inspect_in_child(bare, {"tokenizer_from": str(lender)})
    (lender / "tokenizer.json").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer.json can't be read: No such file"):
        side_files(source)
