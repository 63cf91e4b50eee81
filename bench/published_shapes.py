"""Random, seeded weights in the published shapes of small models: Qwen 3.5, LFM2, Falcon-H1, Granite 4, Gemma 3.

The sizes are those of the published configs. transformers' own classes give the names and the start values of decays
and step sizes; ``bench.weights`` writes the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def qwen3_5_800m() -> Any:
    """Qwen3.5-0.8B, its text model: 18 layers of the gated delta rule, 6 of gated attention."""
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(
        vocab_size=248320,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        layer_types=["full_attention" if number % 4 == 3 else "linear_attention" for number in range(24)],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        architectures=["Qwen3_5ForCausalLM"],
    )


def lfm2_350m() -> Any:
    """LFM2-350M: 10 layers of short convolutions, 6 of attention."""
    from transformers import Lfm2Config

    attention = {2, 5, 8, 10, 12, 14}
    return Lfm2Config(
        vocab_size=65536,
        hidden_size=1024,
        intermediate_size=6656,  # of which two thirds are used, in steps of 256
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        conv_L_cache=3,
        layer_types=["full_attention" if number in attention else "conv" for number in range(16)],
        block_auto_adjust_ff_dim=True,
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        tie_word_embeddings=True,
        architectures=["Lfm2ForCausalLM"],
    )


def falcon_h1_500m() -> Any:
    """Falcon-H1-0.5B: 36 layers with attention beside Mamba-2."""
    from transformers import FalconH1Config

    return FalconH1Config(
        vocab_size=32784,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=36,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        mamba_d_ssm=1536,
        mamba_n_heads=24,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_chunk_size=128,
        mamba_norm_before_gate=False,
        mamba_rms_norm=False,
        mamba_conv_bias=True,
        tie_word_embeddings=False,
        architectures=["FalconH1ForCausalLM"],
    )


def granite_4_350m_h() -> Any:
    """Granite-4.0-350M-H: 28 Mamba-2 layers, 4 of attention, without experts."""
    from transformers import GraniteMoeHybridConfig

    attention = {10, 13, 17, 27}
    return GraniteMoeHybridConfig(
        vocab_size=100352,
        hidden_size=768,
        intermediate_size=2048,
        shared_intermediate_size=2048,
        num_hidden_layers=32,
        layer_types=["attention" if number in attention else "mamba" for number in range(32)],
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=0,
        num_experts_per_tok=0,
        mamba_n_heads=48,
        mamba_d_head=32,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=256,
        position_embedding_type="nope",
        embedding_multiplier=12.0,
        attention_multiplier=0.015625,
        residual_multiplier=0.246,
        logits_scaling=3.0,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        architectures=["GraniteMoeHybridForCausalLM"],
    )


def gemma_3_270m() -> Any:
    """Gemma-3-270M: 18 layers of attention, every sixth one without a window."""
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
        query_pre_attn_scalar=256,
        layer_types=["full_attention" if number % 6 == 5 else "sliding_attention" for number in range(18)],
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        architectures=["Gemma3ForCausalLM"],
    )


def rwkv_4_169m() -> Any:
    """RWKV-4-169M: 12 blocks of time mixing and channel mixing."""
    from transformers import RwkvConfig

    return RwkvConfig(
        vocab_size=50277,
        hidden_size=768,
        num_hidden_layers=12,
        attention_hidden_size=768,
        intermediate_size=3072,
        context_length=1024,
        rescale_every=0,
        tie_word_embeddings=False,
        architectures=["RwkvForCausalLM"],
    )


def recurrentgemma_2b_3_layers() -> Any:
    """The widths of RecurrentGemma-2B with 3 of its 26 layers, 2 of them recurrent, and a sixteenth of its tokens."""
    from transformers import RecurrentGemmaConfig

    return RecurrentGemmaConfig(
        vocab_size=16000,
        hidden_size=2560,
        lru_width=2560,
        intermediate_size=15360,
        num_hidden_layers=3,
        num_attention_heads=10,
        num_key_value_heads=1,
        head_dim=256,
        attention_window_size=2048,
        conv1d_width=4,
        architectures=["RecurrentGemmaForCausalLM"],
    )


def xlstm_7b_1_layer() -> Any:
    """The widths of xLSTM-7B with 1 of its 32 layers and a sixth of its tokens."""
    from transformers import xLSTMConfig

    return xLSTMConfig(
        vocab_size=8192,
        hidden_size=4096,
        embedding_dim=4096,
        num_hidden_layers=1,
        num_blocks=1,
        num_heads=8,
        qk_dim_factor=0.5,
        v_dim_factor=1.0,
        architectures=["xLSTMForCausalLM"],
    )


PUBLISHED: dict[str, Callable[[], Any]] = {
    "qwen3.5-0.8b": qwen3_5_800m,
    "lfm2-350m": lfm2_350m,
    "falcon-h1-0.5b": falcon_h1_500m,
    "granite-4-350m-h": granite_4_350m_h,
    "gemma-3-270m": gemma_3_270m,
    "rwkv-4-169m": rwkv_4_169m,
    "recurrentgemma-2b-3-layers": recurrentgemma_2b_3_layers,
    "xlstm-7b-1-layer": xlstm_7b_1_layer,
}
"""The config of each name, as transformers' class."""
