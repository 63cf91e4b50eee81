"""Bytes of small GGUF models for a hub on loopback: whole, split, and of an architecture that isn't read."""

from __future__ import annotations

import numpy as np

from tests.inference.modelling.gguf.writer import Gguf, Tensor, keys_of, value

HIDDEN, WIDTH, HEADS = 32, 48, 2


def llama_gguf(vocab: int = 64, *, architecture: str = "llama", seed: int = 1) -> bytes:
    """A llama of one layer, whose factors of the rotation stand at the end."""
    return Gguf(keys_of(_keys(vocab, architecture)), _tensors(vocab, seed)).content()


def split_llama(vocab: int = 64, num_parts: int = 3) -> list[bytes]:
    """The same in parts."""
    tensors, parts = _tensors(vocab, 1), []
    for number in range(num_parts):
        keys = {
            "split.no": value(number, "u16"),
            "split.count": value(num_parts, "u16"),
            "split.tensors.count": value(len(tensors)),
        }
        first = _keys(vocab, "llama") if number == 0 else {}
        parts.append(Gguf(keys_of({**first, **keys}), tensors[number::num_parts]).content())
    return parts


def _keys(vocab: int, name: str) -> dict[str, object]:
    return {
        "general.architecture": name,
        "general.file_type": 0,
        f"{name}.block_count": 1,
        f"{name}.context_length": 128,
        f"{name}.embedding_length": HIDDEN,
        f"{name}.feed_forward_length": WIDTH,
        f"{name}.attention.head_count": HEADS,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocab)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _tensors(vocab: int, seed: int) -> list[Tensor]:
    random = np.random.default_rng(seed)
    shapes = {
        "token_embd": (vocab, HIDDEN), "output": (vocab, HIDDEN), "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,), "blk.0.ffn_gate": (WIDTH, HIDDEN),
        "blk.0.ffn_up": (WIDTH, HIDDEN), "blk.0.ffn_down": (HIDDEN, WIDTH),
        **{f"blk.0.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "k", "v", "output")},
    }  # fmt: skip
    made = [
        Tensor(f"{name}.weight", shape, random.normal(size=shape).astype("<f4").tobytes())
        for name, shape in shapes.items()
    ]
    factors = np.linspace(1, 8, HIDDEN // HEADS // 2).astype("<f4")
    return [*made, Tensor("rope_freqs.weight", factors.shape, factors.tobytes())]
