"""Reading an adapter: which modules change, what it takes, and that its factors are the files'."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from inference.modelling.adapters.loading import load_adapter
from tests.inference.modelling.adapters.harness import make_adapter, plan_directory
from tests.inference.modelling.adapters.test_forms import CONFIG
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.huggingface import make_checkpoint


def test_deltas_have_the_files_factors_by_our_modules(tmp_path: Path) -> None:
    base, _ = make_checkpoint(CONFIG, tmp_path / "base")
    make_adapter(base, tmp_path / "adapter", r=4, lora_alpha=8, target_modules=["k_proj", "down_proj"])
    network = load_directory(base)
    plan, weights = plan_directory(network, base, tmp_path / "adapter")
    loaded = load_adapter(plan, weights, network)
    assert not loaded.is_eager
    assert sorted(loaded.deltas) == [
        f"layers.{layer}.{name}" for layer in (0, 1) for name in ("channel_mixer.down_proj", "token_mixer.qkv_proj")
    ]
    stored = load_file(weights)
    (term,) = loaded.deltas["layers.1.token_mixer.qkv_proj"].terms
    prefix = "base_model.model.model.layers.1.self_attn.k_proj."
    torch.testing.assert_close(term.a, stored[prefix + "lora_A.weight"])
    torch.testing.assert_close(term.b, stored[prefix + "lora_B.weight"].T)
    assert (term.first_row, term.scale) == (CONFIG.hidden_size, 2.0)  # behind the queries; alpha / r
    assert loaded.num_bytes == sum(delta.nbytes for delta in loaded.deltas.values())
