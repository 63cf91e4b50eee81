"""X-LoRAs in an LLM: two passes with states of their own, beside other requests, apart from caches and states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.llm.llm import LLM
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from tests.inference.llm.adapter_writing import write_adapter, write_xlora
from tests.inference.llm.harness import OPTIONS, Checkpoint, ids_of, run
from tests.inference.llm.test_adapters import asked, tokens

PROMPT = "the quick brown fox jumps over the lazy dog " * 3


def load(checkpoint: Checkpoint, directory: Path, **options: Any) -> LLM:
    names = {"x": write_xlora, "y": write_xlora, "lora": write_adapter}
    for number, (name, write) in enumerate(names.items()):
        if not (directory / name).exists():
            write(directory / name, number)
    adapters = {name: directory / name for name in names}
    return LLM.load(
        checkpoint.spec, checkpoint.tokenizer, checkpoint.files, replace(OPTIONS, **options), adapters=adapters
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xloras")


def test_requests_in_one_batch_have_what_each_has_alone(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        names = ("x", "y", "lora", None)
        alone = {name: tokens(llm, name, PROMPT) for name in names}
        assert len({tuple(found) for found in alone.values()}) == 4
        together = run(llm, *(asked(str(name), name, PROMPT) for name in names))
        assert {name: ids_of(together[str(name)]) for name in names} == alone
        facts = llm.adapters.facts()["x"]
        assert facts.is_xlora and not llm.adapters.facts()["lora"].is_xlora and facts.rank == 4


def test_chunks_and_preemptions_change_nothing(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        wanted = {name: tokens(llm, name, PROMPT) for name in ("x", "y", None)}
    small = {"max_num_batched_tokens": 4, "max_num_seqs": 4, "cache_bytes": None}
    with load(checkpoint, directory, **small) as llm:
        assert {name: tokens(llm, name, PROMPT) for name in wanted} == wanted
    params, names = SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True), ["x", "y", None, "lora"] * 2
    with load(checkpoint, directory) as llm:
        alone = {name: llm.generate("the quick", params, adapter=name)[0].text for name in names}
    token_bytes = checkpoint.spec.state_bytes_per_token("float32")
    with load(checkpoint, directory, cache_bytes=token_bytes * 16 * 11, max_model_len=128, max_num_seqs=4) as llm:
        outputs = llm.generate(["the quick"] * 8, params, adapter=names)
        assert [output.text for output in outputs] == [alone[name] for name in names]
        assert llm.stats()["num_preemptions"] > 0


def test_the_prefix_cache_holds_nothing_of_an_xlora(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        first, second = (llm.generate(PROMPT, SamplingParams(max_tokens=4), adapter="x")[0] for _ in range(2))
        assert first.usage["cached_tokens"] == second.usage["cached_tokens"] == 0
        assert llm.stats()["prefix_cache"]["num_idle_blocks"] == 0
        base = tokens(llm, None, PROMPT)
        assert tokens(llm, "x", PROMPT) != base == tokens(llm, None, PROMPT)
        assert llm.generate(PROMPT, SamplingParams(max_tokens=1))[0].usage["cached_tokens"] > 0


def test_states_of_an_xlora_are_refused(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        with pytest.raises(InvalidRequest, match="has two states, and a saved state holds one"):
            llm.save_state(PROMPT, adapter="x")
        assert tokens(llm, "x")


def test_drafts_are_left_out(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        wanted = tokens(llm, "x", "a b a b a b a b")
    with load(checkpoint, directory, speculative=SpeculativeOptions("ngram", num_tokens=3, is_adaptive=False)) as llm:
        assert tokens(llm, "x", "a b a b a b a b") == wanted
        assert llm.stats()["speculation"]["num_proposed"] == 0


def test_states_count_once_and_leave_with_the_last_xlora(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory, max_adapters=2) as llm:
        states = llm.stats()["state_bytes"]
        sizes = {name: facts.num_bytes for name, facts in llm.adapters.facts().items()}
        assert sizes["x"] > states and sizes["lora"] < sizes["x"] - states
        tokens(llm, "x")
        assert llm.memory_bytes()["adapters"] == sizes["x"] == llm.stats()["adapters"]["resident_bytes"]
        tokens(llm, "y")
        assert llm.memory_bytes()["adapters"] == 2 * sizes["x"] - states == llm.stats()["adapters"]["resident_bytes"]
        write_adapter(directory / "other", 9)
        llm.load_adapter("other", directory / "other")
        for name in ("lora", "other"):
            tokens(llm, name)
        assert llm.memory_bytes()["adapters"] == 2 * sizes["lora"]
    budget = {"max_adapters": 2, "adapter_bytes": sizes["x"] - 1}
    with load(checkpoint, directory, **budget) as llm:
        with pytest.raises(InvalidRequest, match=r"adapter_bytes is .*; raise it"):
            tokens(llm, "x")
        assert tokens(llm, "lora")


def test_vectors_and_logprobs_go_through_both_passes(checkpoint: Checkpoint, directory: Path) -> None:
    with load(checkpoint, directory) as llm:
        assert not (llm.embed(PROMPT, adapter="x") == llm.embed(PROMPT)).all()
        params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
        scores = [llm.generate(PROMPT, params, adapter=name)[0].prompt_logprobs for name in ("x", None)]
        assert scores[0] != scores[1] and len(scores[0]) == len(scores[1])
