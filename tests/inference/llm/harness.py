"""A tiny random checkpoint with a real tokenizer, and requests run through an LLM to their events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inference.llm.llm import LLM
from inference.llm.options import LLMOptions
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from inference.values.messages import GenerationEvent
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.modelling.harness import read_view
from tests.inference.text.tokenisation.family_templates import FAMILY_TEMPLATES

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog 🙂 你好 héllo wörld. " * 3, "user system assistant\n" * 3]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 400,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
MAX_LEN = 128
OPTIONS = LLMOptions(max_model_len=MAX_LEN, max_num_seqs=8, max_num_batched_tokens=32, num_threads=1)


def write_tokenizer(path: Path) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(path))
    return tokenizer.get_vocab_size()


def write_weights(path: Path) -> None:
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 2.0 / shape[-1] ** 0.5

    tensors = {"model.embed_tokens.weight": random(400, 32) * 3, "lm_head.weight": random(400, 32)}
    tensors["model.norm.weight"] = torch.ones(32)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (32, 32),
            "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32),
            "self_attn.o_proj": (32, 32),
            "mlp.gate_proj": (48, 32),
            "mlp.up_proj": (48, 32),
            "mlp.down_proj": (32, 48),
        }.items():
            tensors[f"{prefix}{name}.weight"] = random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(32)
    save_file(tensors, str(path))


class Checkpoint:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.num_tokens = write_tokenizer(directory / "tokenizer.json")
        write_weights(directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(CONFIG))
        self.spec: ModelSpec = family_builder("llama")(read_view(directory))
        self.files = [directory / "model.safetensors"]
        self.tokenizer = TokenizerSpec(
            "huggingface",
            400,
            path=str(directory / "tokenizer.json"),
            bos_token_id=0,
            eos_token_ids=(1,),
            chat_template="{{ bos_token }}" + FAMILY_TEMPLATES["chatml"],
            special_tokens=(("bos_token", "<s>"), ("eos_token", "</s>")),
        )


def params(**values: Any) -> dict[str, Any]:
    return {"temperature": 1.0, "seed": 3, "max_tokens": 24, "ignore_eos": True} | values


def message(request_id: str = "r", *, prompt: Any = None, attempt: int = 0, **values: Any) -> Any:
    options = {name: values.pop(name) for name in ("echo", "return_prompt_token_ids", "delivered") if name in values}
    return {
        "request_id": request_id,
        "web_id": "w",
        "attempt": attempt,
        "model": "m",
        "prompt": prompt or {"text": "the quick 🙂"},
        "params": params(**values),
        "priority": 0,
        "deadline": 0.0,
        **options,
    }


def run(llm: LLM, *messages: Any) -> dict[str, list[GenerationEvent]]:
    """All events by request; indices are dense, the last event and only that one is terminal."""
    for item in messages:
        llm.add(llm.prepare(item))
    events: dict[str, list[GenerationEvent]] = {item["request_id"]: [] for item in messages}
    while llm.has_unfinished():
        for event in llm.step():
            events[event["request_id"]].append(event)
    for item in messages:
        found = events[item["request_id"]]
        assert [event["index"] for event in found] == list(range(len(found)))
        assert {event["attempt"] for event in found} == {item["attempt"]}
        assert [event["type"] in ("done", "error") for event in found] == [False] * (len(found) - 1) + [True]
    assert llm._outputs == {} and llm._choices == {}
    assert llm.stats()["num_running"] == llm.stats()["num_waiting"] == llm.stats()["num_blocks_used"] == 0
    return events


def deltas(events: list[GenerationEvent], choice: int = 0) -> list[GenerationEvent]:
    return [event for event in events if event["type"] == "delta" and event["choice"] == choice]


def text_of(events: list[GenerationEvent], choice: int = 0) -> str:
    return "".join(event["text"] for event in deltas(events, choice))


def ids_of(events: list[GenerationEvent], choice: int = 0) -> list[int]:
    return [token_id for event in deltas(events, choice) for token_id in event["token_ids"]]


def one(llm: LLM, **values: Any) -> list[GenerationEvent]:
    return run(llm, message(**values))["r"]


def embedded(llm: LLM, inputs: list[dict[str, Any]], **options: Any) -> tuple[list[Any], list[GenerationEvent]]:
    import base64

    import numpy as np

    message = {
        "request_id": "e", "web_id": "", "attempt": 0, "model": "", "prompt": {"inputs": inputs}, "params": {},
        "priority": 0, "deadline": 0.0, "pooling": None, **options,
    }  # fmt: skip
    llm.add(llm.prepare(message))
    events: list[GenerationEvent] = []
    while llm.has_unfinished():
        events += llm.step()
    assert [event["index"] for event in events] == list(range(len(events)))
    found = {
        event["choice"]: np.frombuffer(base64.b64decode(event["embedding"]), dtype="<f4")
        for event in events
        if event["type"] == "delta"
    }
    return [found[number] for number in range(len(inputs))], events
