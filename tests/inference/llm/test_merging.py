"""Merging adapters into a base: while it is loaded and to disk, against PEFT and by each method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.utils.merge_utils import ties
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from inference.errors import CheckpointError, InvalidRequest, UnsupportedFormat
from inference.llm.checkpoint_writing import SourceFiles
from inference.llm.llm import LLM
from inference.llm.merging import Merge, merge_checkpoint, parse_weighted
from inference.modelling.adapters.merging import MergeRule
from inference.values.sampling_params import SamplingParams
from models_registry.detection.safetensors_header import read_header
from tests.inference.llm.adapter_writing import SHAPES, factors, write_adapter
from tests.inference.llm.harness import OPTIONS, Checkpoint, ids_of
from tests.inference.modelling import test_network_attention as attention
from tests.inference.modelling import test_network_dense as dense
from tests.inference.modelling.adapters.harness import make_adapter
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def source_of(directory: Path) -> SourceFiles:
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= read_header(path)
    others = sorted(path.name for path in directory.iterdir() if path.suffix == ".json")
    return SourceFiles(directory, tensors, others)


def merged(base: Path, target: Path, *adapters: tuple[Path, float], **rule: Any) -> dict[str, torch.Tensor]:
    spec = load_directory(base).spec
    files = sorted(base.glob("*.safetensors"))
    merge_checkpoint(spec, files, source_of(base), target, Merge(adapters, MergeRule(**rule)))
    return load_file(target / "model.safetensors")


@pytest.fixture
def adapters(tmp_path: Path) -> tuple[Path, Path]:
    return write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "two", 2)


def deltas(*seeds: int) -> list[torch.Tensor]:
    found = [factors(seed) for seed in seeds]
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    return [one[f"{prefix}.lora_B.weight"] @ one[f"{prefix}.lora_A.weight"] for one in found]


CASES: dict[str, tuple[PretrainedConfig, dict[str, Any]]] = {
    "llama": (attention.CASES["llama"], {"target_modules": "all-linear"}),
    "dora": (attention.CASES["llama"], {"target_modules": "all-linear", "use_dora": True}),
    "head-and-embedding": (
        LlamaConfig(**attention.BASE | {"tie_word_embeddings": False}),
        {"target_modules": ["embed_tokens", "lm_head"]},
    ),
    "gpt2": (dense.tiny_config(*dense.CASES["gpt2"]), {"target_modules": "all-linear"}),
    "mixtral": (attention.CASES["mixtral"], {"target_modules": "all-linear"}),
    "gpt_oss": (dense.tiny_config(*dense.CASES["gpt_oss"]), {"target_modules": "all-linear"}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_adapter_gives_pefts_merged_model(tmp_path: Path, name: str) -> None:
    config, options = CASES[name]
    base, _ = make_checkpoint(config, tmp_path / "base")
    oracle = make_adapter(base, tmp_path / "adapter", r=3, **options)
    merged(base, tmp_path / "merged", (tmp_path / "adapter", 1.0))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager").float().eval()
    tokens = torch.arange(3, 20)
    with torch.inference_mode():
        found = model(tokens.unsqueeze(0), use_cache=False).logits[0]
    torch.testing.assert_close(found, oracle(tokens), atol=5e-4, rtol=5e-4)


def test_several_adapters_add_up_as_in_peft(tmp_path: Path) -> None:
    base, _ = make_checkpoint(attention.CASES["llama"], tmp_path / "base")
    names = ("one", "two")
    for seed, name in enumerate(names):
        make_adapter(base, tmp_path / name, r=3, seed=seed, target_modules="all-linear")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "one", adapter_name="one")
    model.load_adapter(tmp_path / "two", adapter_name="two")
    model.add_weighted_adapter(list(names), [0.7, -0.4], "both", combination_type="linear")
    found = merged(base, tmp_path / "merged", (tmp_path / "one", 0.7), (tmp_path / "two", -0.4))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "one").merge_and_unload()
    base_weight = load_file(base / "model.safetensors")[Q_PROJ]
    one = dict(model.named_parameters())[Q_PROJ] - base_weight
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "two").merge_and_unload()
    two = dict(model.named_parameters())[Q_PROJ] - base_weight
    torch.testing.assert_close(found[Q_PROJ], (base_weight + 0.7 * one - 0.4 * two).detach())


def test_ties_is_pefts(checkpoint: Checkpoint, tmp_path: Path, adapters: tuple[Path, Path]) -> None:
    base = checkpoint.directory
    found = merged(base, tmp_path / "merged", (adapters[0], 0.8), (adapters[1], 1.3), method="ties", density=0.3)
    wanted = ties(deltas(1, 2), torch.tensor([0.8, 1.3]), 0.3)
    torch.testing.assert_close(
        found[Q_PROJ] - load_file(base / "model.safetensors")[Q_PROJ], wanted, atol=1e-5, rtol=1e-5
    )


def test_slerp_turns_from_one_to_the_other(checkpoint: Checkpoint, tmp_path: Path, adapters: tuple[Path, Path]) -> None:
    base = load_file(checkpoint.files[0])[Q_PROJ]
    first, second = deltas(1, 2)
    changes = []
    for number, share in enumerate((0.0, 0.5, 1.0)):
        pair = ((adapters[0], 1.0), (adapters[1], 1.0))
        found = merged(checkpoint.directory, tmp_path / str(number), *pair, method="slerp", share=share)
        changes.append(found[Q_PROJ] - base)
    torch.testing.assert_close(changes[0], first, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(changes[2], second, atol=1e-5, rtol=1e-5)
    cosine = torch.nn.functional.cosine_similarity(first.flatten(), second.flatten(), 0)
    half = torch.arccos(cosine) / 2
    assert torch.nn.functional.cosine_similarity(changes[1].flatten(), first.flatten(), 0) > cosine
    scale = half.sin() / (2 * half).sin()
    torch.testing.assert_close(changes[1], scale * (first + second), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("quant", ["none", "int8"])
def test_merging_while_loading_is_merging_to_disk(
    checkpoint: Checkpoint, tmp_path: Path, adapters: tuple[Path, Path], quant: Any
) -> None:
    options = replace(OPTIONS, quant=quant)
    merge = Merge(((adapters[0], 1.0), (adapters[1], 0.5)))
    merged(checkpoint.directory, tmp_path / "merged", *merge.adapters)
    files = [tmp_path / "merged" / "model.safetensors"]
    outputs, identities = [], []
    for weight_files, given in ((checkpoint.files, merge), (files, None), (checkpoint.files, None)):
        llm = LLM.load(checkpoint.spec, checkpoint.tokenizer, weight_files, options, merge=given)
        outputs.append(ids_of(list(llm.events("the quick brown fox", GREEDY))))
        identities.append(llm.state_identity())
        llm.close()
    assert outputs[0] == outputs[1] != outputs[2]
    assert identities[0] != identities[2]


def test_a_merged_adapter_is_what_requests_get_by_its_name(checkpoint: Checkpoint, adapters: tuple[Path, Path]) -> None:
    llm = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS, merge=Merge(((adapters[0], 1.0),)))
    named = LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS, adapters={"one": adapters[0]})
    try:
        wanted = ids_of(list(named.events("the quick", GREEDY, adapter="one")))
        assert ids_of(list(llm.events("the quick", GREEDY))) == wanted
    finally:
        llm.close()
        named.close()


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(
    checkpoint: Checkpoint, tmp_path: Path, adapters: tuple[Path, Path]
) -> None:
    one = (adapters[0], 1.0)
    for rule, words in (
        ({"method": "slerp"}, "slerp mixes 2 adapters, not 1"),
        ({"method": "ties", "density": 0.0}, "density is 0"),
        ({"method": "slerp", "share": 2.0}, "share is 2"),
        ({"method": "dare"}, "method is 'dare'"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            merged(checkpoint.directory, tmp_path / "out", one, **rule)
    tensors = factors(1) | {
        f"base_model.model.model.layers.9.{name}.lora_A.weight": torch.zeros(4, 32) for name in SHAPES
    }
    with pytest.raises(CheckpointError):
        merged(checkpoint.directory, tmp_path / "out", (write_adapter(tmp_path / "bad", tensors=tensors), 1.0))
    broken = {name: tensor * torch.nan for name, tensor in factors(1).items()}
    with pytest.raises(CheckpointError, match="no numbers"):
        merged(checkpoint.directory, tmp_path / "out", (write_adapter(tmp_path / "nan", tensors=broken), 1.0))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InvalidRequest, match="isn't an empty directory"):
        merged(checkpoint.directory, tmp_path / "full", one)
    assert not (tmp_path / "out").exists()


def test_a_norm_is_merged(checkpoint: Checkpoint, tmp_path: Path) -> None:
    norm = {"base_model.model.model.norm.weight": torch.full((32,), 2.0)}
    adapter = write_adapter(tmp_path / "norm", tensors=factors(1) | norm, modules_to_save=["norm"])
    found = merged(checkpoint.directory, tmp_path / "out", (adapter, 1.0))
    assert found["model.norm.weight"].tolist() == [2.0] * 32


def test_an_adapter_of_another_tokenizer_is_not_merged(checkpoint: Checkpoint, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", 1)
    tokens = (checkpoint.directory / "tokenizer.json").read_text()
    (adapter / "tokenizer.json").write_text(tokens.replace('"a":', '"zz":').replace('"b":', '"a":'))
    with pytest.raises(UnsupportedFormat, match="was trained with another tokenizer"):
        merged(checkpoint.directory, tmp_path / "out", (adapter, 1.0))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UnsupportedFormat, match="was trained with another tokenizer"):
        LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, OPTIONS, merge=Merge(((adapter, 1.0),)))


def test_a_tied_embedding_is_not_merged(tmp_path: Path) -> None:
    base, _ = make_checkpoint(LlamaConfig(**attention.BASE | {"tie_word_embeddings": True}), tmp_path / "base")
    make_adapter(base, tmp_path / "adapter", r=3, target_modules=["lm_head"])
    with pytest.raises(UnsupportedFormat, match="a merge would change both"):
        merged(base, tmp_path / "merged", (tmp_path / "adapter", 1.0))


def test_weights_of_the_command_line(tmp_path: Path) -> None:
    assert parse_weighted("some/dir") == (Path("some/dir"), 1.0)
    assert parse_weighted("some/dir=-0.5") == (Path("some/dir"), -0.5)
    with pytest.raises(InvalidRequest, match="must look like"):
        parse_weighted("some/dir=much")
    with pytest.raises(InvalidRequest, match="between"):
        parse_weighted("some/dir=1e9")
