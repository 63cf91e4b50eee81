"""GGUF files through the inspection: facts with evidence, and errors that name the file's own keys."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from inference.errors import CheckpointError, MissingTensor, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import Confidence, Facts
from models_registry.detection.child import inspect_in_child
from models_registry.detection.directory import resolve
from models_registry.detection.gguf_files import read_gguf_checkpoint
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.writer import TYPES, Tensor, value, write_gguf
from tests.inference.modelling.huggingface import make_checkpoint

CONFIG = LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A small Llama, matrices in Q8_0, alone in a directory."""
    directory, _ = make_checkpoint(CONFIG, tmp_path_factory.mktemp("safetensors"))
    return convert(directory, tmp_path_factory.mktemp("gguf") / "small.gguf", "Q8_0")


def test_a_file_is_inspected_with_evidence(path):
    found = inspect_checkpoint(path)
    facts = {fact.name: fact for fact in found.facts}
    assert facts["file_format"].value == "GGUF"
    assert "version 3" in facts["file_format"].evidence
    assert facts["gguf.architecture"].value == "llama"
    assert facts["gguf.file_type"].value == "F32"
    assert facts["quantisation"].value.startswith("Q8_0 9")
    assert (facts["max_position_embeddings"].value, facts["max_position_embeddings"].confidence) == (64, "certain")
    assert facts["rope.theta"].evidence == "the file's metadata"
    assert not [fact for fact in found.facts if "tokenizer_the" in fact.evidence]
    assert found.spec.model_type == "llama"
    assert (found.spec.vocab_size, found.spec.dtype) == (96, "bfloat16")
    assert found.weight_files == ("small.gguf",)
    assert found.tensors["model.layers.0.self_attn.q_proj.weight"].dtype == "Q8_0"
    assert Inspection.from_dict(found.to_dict()) == found
    assert facts["activation"].confidence is Confidence.CERTAIN


def test_types_without_kernels_are_a_warning(tmp_path):
    path, facts = tmp_path / "m.gguf", Facts()
    number, _, size = TYPES["IQ2_XS"]
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    write_gguf(path, keys, [Tensor("token_embd.weight", (2, 256), bytes(2 * size), type=number)])
    read_gguf_checkpoint(resolve(path), facts)
    assert "stored as IQ2_XS, for which there are no kernels" in facts.warnings[0]


def test_the_directory_of_the_only_file_is_the_file(path):
    assert inspect_checkpoint(path.parent).spec == inspect_checkpoint(path).spec


def test_what_lies_beside_is_another_models(path, tmp_path):
    own = tmp_path / "a.gguf"
    own.write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert inspect_checkpoint(own).spec.model_type == "llama"


def test_the_confined_child_says_the_same(path):
    assert inspect_in_child(path) == inspect_checkpoint(path)


def test_a_truncated_file_is_refused(path, tmp_path):
    short = tmp_path / "short.gguf"
    content = path.read_bytes()
    for length in (3, 100, len(content) // 2, len(content) - 100):
        short.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"short\.gguf"):
            inspect_checkpoint(short)


def test_a_missing_part_is_named(tmp_path):
    first = tmp_path / "m-00001-of-00002.gguf"
    keys = {"general.architecture": "llama", "split.no": value(0, "u16"), "split.count": value(2, "u16")}
    write_gguf(first, keys, [])
    with pytest.raises(MissingTensor, match=r"m-00002-of-00002\.gguf"):
        inspect_checkpoint(first)


def test_messages_name_the_files_metadata(tmp_path):
    path = tmp_path / "m.gguf"
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 64}
    write_gguf(
        path, keys, [Tensor("token_embd.weight", (4, 32), bytes(512)), Tensor("output_norm.weight", (32,), bytes(128))]
    )
    with pytest.raises(TensorShapeMismatch, match="hidden_size 64") as caught:
        inspect_checkpoint(path)
    assert "the file's metadata says hidden_size 64" in caught.value.message
    assert "config.json" not in caught.value.message


def test_an_unknown_architecture_names_those_that_are_read(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "rwkv6"}, [])
    with pytest.raises(UnsupportedArchitecture, match=r"'rwkv6', which is not read; read are llama, .*deepseek2"):
        inspect_checkpoint(path)
