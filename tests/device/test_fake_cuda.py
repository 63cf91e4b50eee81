"""What an engine asks of a CUDA device, without one: nothing from the host, no needless wait, no late compiling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

import inference.demo
from bench.gpu_models import empty_network, quantise_network
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.request import EngineRequest
from inference.engine.speculation.draft_runner import DraftModel
from inference.engine.speculation.setup import Speculation
from inference.errors import ModelLoadFailed
from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.backends import backend as kernels
from inference.modelling.quantisation import Quant
from inference.values.sampling_params import SamplingParams
from inference.values.speculative_options import SpeculativeOptions
from inference.values.token_constraint import TokenMask
from models_registry.detection.inspection import inspect_checkpoint
from tests.device import fake_cuda as fake_cuda_module
from tests.device.fake_cuda import DEVICE, fake_cuda
from tests.device.networks import STACKS, VOCAB, make_spec

DEMO = Path(inference.demo.__file__).parent / "checkpoint"

pytestmark = pytest.mark.skipif(not kernels.PRESENT, reason="triton is not installed")


@pytest.fixture
def traffic(monkeypatch):
    with fake_cuda(monkeypatch) as traffic:
        yield traffic


def make_engine(name: str, *, vocab_size: int = VOCAB, quant: Quant = "none", **options) -> Engine:
    """Prompts come in chunks of up to 16 tokens, beside the decodes of others."""
    spec = make_spec(name, vocab_size)
    sizes = {
        "num_blocks": 64, "num_state_slots": 9, "num_snapshot_slots": 4, "block_size": 4, "max_num_seqs": 2,
        "max_num_batched_tokens": 16, "device": DEVICE, "dtype": "bfloat16", "invalid_token_ids": (3, 5),
    }  # fmt: skip
    network = quantise_network(empty_network(spec, DEVICE, torch.bfloat16), quant)
    return Engine(network, spec, EngineConfig(96, **(sizes | options)))


def request(name: str, length: int, **params) -> EngineRequest:
    values = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True} | params
    return EngineRequest(name, [(7 * at + length) % VOCAB for at in range(length)], SamplingParams(**values))


QUANTISED = ["llama", "gemma", "mixtral", "deepseek v2", "qwen moe", "bamba", "nemotron h"]


@pytest.mark.parametrize(
    ("name", "quant", "tokens", "state_dtype"),
    [
        *((name, "none", 16, "float32") for name in STACKS),
        *((name, "none", 16, "bfloat16") for name in ("bamba", "odd delta", "rwkv", "griffin")),
        *((name, "int4", 16, "float32") for name in QUANTISED),
        ("mixtral", "int8", 96, "float32"),
        ("odd delta", "none", 96, "float32"),
    ],
)
def test_steps_of_every_kind_of_layer(name, quant, tokens, state_dtype, traffic):
    """Chunks, later chunks and decodes in one step: each waits once, for its tokens, and compiles nothing new."""
    engine = make_engine(name, quant=quant, max_num_batched_tokens=tokens, state_dtype=state_dtype)
    known, is_captured = set(traffic.launches), engine._runner._graphs is not None
    assert known and is_captured
    waiting = [request(f"r{length}", length, max_tokens=2) for length in (16, 21, 1, 70)]
    while waiting or engine.has_unfinished():
        if waiting:
            engine.add_request(waiting.pop(0))
        traffic.waits.clear()
        traffic.launches.clear()
        for output in engine.step():
            assert output.error is None, output.error
        assert traffic.waits in ([], ["cpu"]), "a step reads its tokens, all at once, and nothing else"
        for launch in set(traffic.launches) - known:
            raise AssertionError(f"compiled while serving: {launch}")
    assert engine.stats().num_generated_tokens == 8


@pytest.mark.parametrize("name", ["llama", "bamba"])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 1}], ids=["greedy", "sampled"])
def test_flags_of_unusable_rows_come_with_the_tokens(name, params, traffic, monkeypatch):
    """What the device says of all chunks of a prompt ends the request in the step of its first token."""
    engine = make_engine(name)
    traffic.waits.clear()
    monkeypatch.setattr(fake_cuda_module, "_zeros", _ones)  # each flag is set
    engine.add_request(request("r", 40, max_tokens=2, **params))
    steps, outputs = 0, []
    while not outputs:
        assert traffic.waits == [], "a chunk that isn't the last waits for nothing"
        outputs = engine.step()
        steps += 1
        assert engine._prefix_cache._tree.num_nodes == 0, "nothing is kept of what nobody knows"
    assert steps >= 3 and traffic.waits == ["cpu"]
    assert "numerical_error" in outputs[0].error.message


def _ones(like):
    with unset_fake_temporarily(), torch._C.DisableTorchFunctionSubclass():
        return torch.ones(tuple(like.shape), dtype=like.dtype)


SAMPLED = {"temperature": 0.8, "seed": 1}


@pytest.mark.parametrize(
    "params",
    [
        SAMPLED,
        SAMPLED | {"top_k": 40},
        SAMPLED | {"top_p": 0.9},
        SAMPLED | {"min_p": 0.1, "top_p": 0.9, "top_k": 2000},
        {"logprobs": 3},
        {"repetition_penalty": 1.2, "logit_bias": {7: 1.0}, "min_tokens": 2, "ignore_eos": False},
    ],
    ids=str,
)
def test_sampling_waits_once(params, traffic):
    engine = make_engine("llama", vocab_size=4096)
    engine.add_request(request("greedy", 5))
    for number in range(2):
        engine.add_request(request(f"r{number}", 7, **params))
    while engine.has_unfinished():
        traffic.waits.clear()
        for output in engine.step():
            assert output.error is None, output.error
        assert traffic.waits == ["cpu"]
    assert engine.stats().num_generated_tokens == 18


def test_a_snapshot_crosses_in_one_copy(traffic):
    """States of all layers together, to host memory and back."""
    engine = make_engine("bamba")
    access = engine._prefix_cache._snapshots._access
    for read, write in (
        (lambda: access.read_slot(1), lambda payload: access.write_slot(2, payload)),
        (lambda: access.read_block(1, 3), lambda payload: access.write_block(2, payload, 2)),
    ):
        traffic.waits.clear()
        traffic.uploads = 0
        payload = read()
        assert traffic.waits == ["cpu"] and payload.dtype == np.uint8
        write(payload)
        assert traffic.waits == ["cpu"] and traffic.uploads == 1


class AnyButFew:
    """A grammar of which few tokens are refused."""

    error = None
    must_end = False
    is_finished = False

    def mask(self) -> TokenMask:
        return TokenMask(np.array([2, 9], dtype=np.int64), allows=False)

    def allows(self, token_id: int) -> bool:
        return token_id not in (2, 9)

    def accept(self, token_id: int) -> None:
        """Nothing changes."""


def test_a_grammar_waits_once(traffic):
    engine = make_engine("llama")
    for number, params in enumerate(({}, SAMPLED)):
        engine.add_request(replace(request(f"r{number}", 5, **params), constraint=AnyButFew()))
    steps = 0
    while engine.has_unfinished():
        traffic.waits.clear()
        for output in engine.step():
            assert output.error is None, output.error
        assert traffic.waits == ["cpu"]
        steps += 1
    assert steps == 6
    engine.close()


def test_scored_and_pooled_prompts(traffic):
    """A chunk's rows are read once per slice, a vector once; nothing comes from the host's memory."""
    engine = make_engine("gemma")
    traffic.waits.clear()
    engine.add_request(request("scored", 20, prompt_logprobs=2, max_tokens=1))
    engine.add_request(replace(request("pooled", 20, max_tokens=0), pooling="mean"))
    while engine.has_unfinished():
        for output in engine.step():
            assert output.error is None, output.error
    assert set(traffic.waits) == {"cpu", "__bool__"}


@pytest.mark.parametrize("name", ["gemma", "bamba"])
@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_guesses(name, method, traffic):
    """Guesses are verified and rolled back; what is found and preempted is copied within the device."""
    options = SpeculativeOptions(method, "x" if method == "draft" else "", num_tokens=2, is_adaptive=False)
    draft = None
    if method == "draft":
        spec = make_spec("llama")
        sizes = {"num_blocks": 64, "num_state_slots": 4, "max_num_seqs": 3, "block_size": 4}
        config = EngineConfig(96, device=DEVICE, dtype="bfloat16", **sizes)
        draft = DraftModel(empty_network(spec, DEVICE, torch.bfloat16), spec, config)
    spec = make_spec(name)
    config = EngineConfig(
        96, num_blocks=16, num_state_slots=4, num_snapshot_slots=4, num_spare_slots=3, block_size=4, max_num_seqs=3,
        max_num_batched_tokens=16, device=DEVICE, dtype="bfloat16",
    )  # fmt: skip
    engine = Engine(empty_network(spec, DEVICE, torch.bfloat16), spec, config, speculation=Speculation(options, draft))
    traffic.waits.clear()
    for number in range(4):
        engine.add_request(request(f"r{number}", 12, max_tokens=12))
        for output in engine.step():
            assert output.error is None, output.error
    while engine.has_unfinished():
        for output in engine.step():
            assert output.error is None, output.error
    stats = engine.stats()
    assert stats.speculation.num_proposed > 0 and stats.num_generated_tokens == 48
    assert set(traffic.waits) == {"cpu"}


def test_a_checkpoint_is_loaded_and_answers(traffic, monkeypatch):
    """From files to events; what the demo model says is token 0, the only number that there is."""
    found = inspect_checkpoint(DEMO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    options = LLMOptions(device=DEVICE, dtype="bfloat16", max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ModelLoadFailed, match="float16"):
        LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    llm = LLM.load(found.spec, found.tokenizer, found.weight_paths, options)
    assert all(parameter.is_cuda for parameter in llm._engine._runner._network.parameters())
    events = list(llm.events("Once", SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)))
    assert events[-1]["type"] == "done", events
    llm.close()
