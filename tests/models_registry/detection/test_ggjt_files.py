"""ggjt files through the inspection: found, described, run, and what they don't state."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from inference.errors import CheckpointError, MissingTensor, UnsupportedFormat
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.families.config import Confidence, Facts
from inference.modelling.gguf.container import GgufFile
from inference.values.sampling_params import SamplingParams
from models_registry.detection.child import inspect_in_child
from models_registry.detection.directory import resolve
from models_registry.detection.ggjt_files import mlp_width, record_ggjt
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from tests.inference.modelling.gguf.converter import convert
from tests.inference.modelling.gguf.ggjt_writer import convert_to_ggjt, llama_tokens, small
from tests.inference.modelling.huggingface import make_checkpoint
from tests.models_registry.detection.builders import fact

CONFIG = LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, rms_norm_eps=5e-6, tie_word_embeddings=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(CONFIG, tmp_path_factory.mktemp("safetensors"))[0]


@pytest.fixture(scope="module")
def path(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ggjt") / "llama.ggmlv3.q8_0.bin"
    return convert_to_ggjt(directory, place, "Q8_0", tokens=llama_tokens(300))


def test_a_file_is_inspected_with_evidence(path: Path) -> None:
    found = inspect_checkpoint(path)
    assert (found.spec.model_type, found.spec.vocab_size, len(found.spec.layers)) == ("llama", 300, 2)
    assert fact(found, "file_format").value == "ggjt"
    assert "version 3" in fact(found, "file_format").evidence
    assert fact(found, "quantisation").value.startswith("Q8_0 9")
    assert (fact(found, "ggjt.n_head_kv").value, fact(found, "ggjt.n_head_kv").confidence) == (2, Confidence.HIGH)
    assert fact(found, "ggjt.n_ff").value == 192
    assert (fact(found, "norm.eps").value, fact(found, "norm.eps").confidence) == (5e-6, Confidence.LOW)
    assert fact(found, "rope.theta").evidence == "a ggjt file doesn't state it; llama.cpp's default"
    assert (found.spec.max_position_embeddings, fact(found, "max_position_embeddings").confidence) == (2048, "low")
    assert any("states neither the context nor eps" in warning for warning in found.warnings)
    tokenizer = found.tokenizer
    assert (tokenizer.kind, tokenizer.path, tokenizer.bos_token_id) == ("ggjt", str(path), 1)
    assert tokenizer.eos_token_ids == (2,)
    assert Inspection.from_dict(found.to_dict()) == found


def test_the_spec_is_that_of_the_gguf_file(path: Path, directory: Path, tmp_path: Path) -> None:
    other = inspect_checkpoint(convert(directory, tmp_path / "llama.gguf", "Q8_0"))
    found = inspect_checkpoint(path)
    assert found.spec == other.spec
    assert {name: info.dtype for name, info in found.tensors.items()} == {
        name: info.dtype for name, info in other.tensors.items()
    }


def test_what_it_leaves_open_can_be_set(path: Path) -> None:
    found = inspect_in_child(path, overrides={"max_position_embeddings": 4096, "norm.eps": 1e-5, "rope.theta": 5e5})
    assert (found.spec.max_position_embeddings, found.spec.final_norm.eps) == (4096, 1e-5)
    assert fact(found, "rope.theta").confidence is Confidence.OVERRIDE


def test_it_generates_text(path: Path) -> None:
    found = inspect_checkpoint(path)
    llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, LLMOptions(device="cpu", max_num_seqs=1))
    try:
        params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        assert "".join(event.get("text", "") for event in llm.events("ab a", params))
    finally:
        llm.close()


def test_files_are_found_by_how_they_begin(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UnsupportedFormat, match="pickle"):
        resolve(tmp_path)
    with pytest.raises(UnsupportedFormat, match="pickle"):
        resolve(tmp_path / "pytorch_model.bin")
    (tmp_path / "a.ggml").write_bytes(path.read_bytes())
    assert (resolve(tmp_path).weight_files, resolve(tmp_path).choice) == (("a.ggml",), "the only ggjt file")
    (tmp_path / "b.bin").write_bytes(path.read_bytes())
    with pytest.raises(UnsupportedFormat, match="2 ggjt files"):
        resolve(tmp_path)
    assert resolve(tmp_path / "b.bin").is_gguf
    (tmp_path / "model.safetensors").touch()
    assert resolve(tmp_path).weight_files == ("model.safetensors",)


def test_a_file_without_a_layer_says_which_tensor_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(small().content())
    with pytest.raises((MissingTensor, CheckpointError), match="layers"):
        inspect_checkpoint(tmp_path / "a.bin")


@pytest.mark.parametrize(
    ("width", "multiple", "factor", "expected"),
    [(4096, 256, 1.0, 11008), (5120, 256, 1.0, 13824), (8192, 256, 1.0, 22016), (8192, 4096, 1.3, 28672)],
)
def test_widths_of_published_models(width: int, multiple: int, factor: float, expected: int) -> None:
    assert mlp_width(width, multiple, factor) == expected


@pytest.mark.parametrize(("rows", "is_odd"), [(11008, False), (11009, True)])
def test_a_width_that_no_rule_explains_is_a_warning(rows: int, is_odd: bool) -> None:
    keys = {"llama.embedding_length": 4096, "ggjt.n_mult": 256, "llama.feed_forward_length": rows}
    facts = Facts()
    record_ggjt(GgufFile(Path("a.bin"), 3, keys, {}, 32, 36, 100, "ggjt"), facts)
    assert any("would have 11008" in warning for warning in facts.warnings) == is_odd
