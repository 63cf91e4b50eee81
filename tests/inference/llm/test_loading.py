"""A load: progress, memory, faults that leave no process behind, and the engine's sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import inference.llm.loading as module
from inference.errors import Conflict, CorruptCheckpoint, ModelLoadFailed
from inference.llm.llm import LLM
from inference.llm.loading import choose_dtype, engine_config, open_disk
from inference.llm.options import LLMOptions
from inference.llm.sizes import needed_bytes, plan_states
from tests.inference.llm.harness import OPTIONS, Checkpoint


def test_load_reports_progress_and_memory(checkpoint: Checkpoint) -> None:
    reports: list[tuple[float, str]] = []
    llm = LLM.load(
        checkpoint.spec,
        checkpoint.tokenizer,
        checkpoint.files,
        OPTIONS,
        lambda share, name: reports.append((share, name)),
    )
    assert reports[-1][0] == 1.0
    assert [share for share, _ in reports] == sorted(share for share, _ in reports)
    memory = llm.memory_bytes()
    # Packed matrices are filled up to 32 outputs.
    assert 4 * checkpoint.spec.num_parameters() <= memory["weights"] < 4.1 * checkpoint.spec.num_parameters()
    assert memory["states"] == llm.stats()["state_bytes"]
    assert 0 <= llm.total_bytes() - needed_bytes(checkpoint.spec, OPTIONS) < 0.1 * checkpoint.spec.num_parameters()
    children = [llm.tokenizer._encoder._sandbox._child, llm._template._sandbox._child]
    llm.close()
    assert all(child.process.poll() is not None for child in children)
    with pytest.raises(Conflict):
        llm.step()


def test_failed_load_leaves_no_process(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = module.load_tokenizer
    monkeypatch.setattr(module, "load_tokenizer", lambda spec: made.append(original(spec)) or made[-1])
    with pytest.raises(CorruptCheckpoint):
        LLM.load(checkpoint.spec, checkpoint.tokenizer, [checkpoint.directory / "config.json"], OPTIONS)
    assert made[0]._encoder._sandbox._child is None


def test_broken_tokenizer_ends_a_load(checkpoint: Checkpoint, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    spec = replace(checkpoint.tokenizer, path=str(broken))
    with pytest.raises(CorruptCheckpoint, match=r"tokenizer\.json can't be used"):
        LLM.load(checkpoint.spec, spec, checkpoint.files, OPTIONS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_missing_device_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(ModelLoadFailed, match="no CUDA device"):
        LLM.load(checkpoint.spec, checkpoint.tokenizer, checkpoint.files, LLMOptions(device="cuda:0"))


def test_the_engine_gets_the_plan_and_the_options(checkpoint: Checkpoint) -> None:
    options = replace(OPTIONS, max_num_seqs=64, max_num_batched_tokens=32, prefix_cache=False)
    plan = plan_states(checkpoint.spec, options)
    config = engine_config(checkpoint.spec, plan, options, "float32", (7,))
    assert (config.num_blocks, config.num_state_slots, config.max_model_len) == (
        plan.num_blocks, plan.num_state_slots, plan.max_model_len,
    )  # fmt: skip
    assert config.max_num_batched_tokens == 64, "every running request decodes in one step"
    assert (config.invalid_token_ids, config.prefix_cache, config.device) == ((7,), False, "cpu")


@pytest.mark.parametrize("values", [{}, {"prefix_cache": False}, {"cache_dir_bytes": 0}])
def test_without_a_directory_or_a_cache_there_are_no_files(checkpoint: Checkpoint, tmp_path: Path, values) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path / "cache" if values else None, **values)
    assert open_disk(checkpoint.spec, checkpoint.files, "float32", options) is None
    assert not (tmp_path / "cache").exists()


def test_dtype_of_small_models_is_float32(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(checkpoint.spec, dtype="bfloat16")
    large = replace(small, vocab_size=4_000_000)
    monkeypatch.setattr(module, "cpu_multiplies_bfloat16", lambda: True)
    assert choose_dtype(small, LLMOptions()) == "float32"
    assert choose_dtype(large, LLMOptions()) == "bfloat16"
    assert choose_dtype(replace(large, dtype="float32"), LLMOptions()) == "float32"
    assert choose_dtype(large, LLMOptions(dtype="float16")) == "float16"
    assert choose_dtype(small, LLMOptions(device="cuda:0")) == "bfloat16"
    monkeypatch.setattr(module, "cpu_multiplies_bfloat16", lambda: False)
    assert choose_dtype(large, LLMOptions()) == "float32"


def test_the_device_is_the_first_one_unless_the_cpu_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert module.choose_device(force_cpu=True) == "cpu"
    assert module.choose_device(force_cpu=False) == "cuda:0"
