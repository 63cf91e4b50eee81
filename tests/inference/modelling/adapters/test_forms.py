"""Modules that adapters change: rows without an adapter keep their bits, and modules that can't be changed say so."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig

from tests.inference.modelling.adapters.harness import load_adapted, make_adapter
from tests.inference.modelling.huggingface import make_checkpoint

CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip


def test_rows_without_an_adapter_keep_their_bits_beside_adapted_ones(tmp_path: Path) -> None:
    base, _ = make_checkpoint(CONFIG, tmp_path / "base")
    make_adapter(base, tmp_path / "adapter", r=4, target_modules="all-linear")
    plain = load_adapted(base, {})
    adapted = load_adapted(base, {1: tmp_path / "adapter"})
    prompts = [[5, 9, 2, 7], [1, 2, 3, 4], [8, 8, 1, 3]]
    alone = plain.run((0, 0, 0), prompts, 2)
    first, second, third = adapted.run((0, 1, 0), prompts, 2)
    assert torch.equal(first, alone[0]) and torch.equal(third, alone[2])
    assert (second - alone[1]).abs().max() > 0.01
