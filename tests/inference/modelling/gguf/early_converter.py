"""Convert decoders from before Llama to GGUF for tests.

As ``converter.py``: the steps are those of llama.cpp's converter, from its description.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.inference.modelling.gguf.converter import Converter

BY_HEAD = ("bloom", "falcon", "gpt_neox")
"""Types that hold queries, keys and values head by head."""
TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


class EarlyConverter(Converter):
    """One conversion."""

    def _keys(self) -> None:
        config, writer = self.config, self.writer
        hidden = next(config[key] for key in ("hidden_size", "d_model", "n_embd") if key in config)
        self.heads = next(config[key] for key in ("num_attention_heads", "n_head", "n_heads") if key in config)
        self.kv_heads = self.heads
        writer.add_block_count(self.num_layers)
        context = ("max_position_embeddings", "n_positions", "max_seq_len")
        writer.add_context_length(next((config[key] for key in context if key in config), 256))
        writer.add_embedding_length(hidden)
        writer.add_feed_forward_length(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
        writer.add_head_count(self.heads)
        if self.type == "falcon":
            is_one = config["multi_query"] and not config["new_decoder_architecture"]
            self.kv_heads = 1 if is_one else config["num_kv_heads"]
        if self.type == "gpt_bigcode":
            self.kv_heads = 1
        if self.type in ("falcon", "gpt_bigcode", "bloom"):
            writer.add_head_count_kv(self.kv_heads)
        keys = ("layer_norm_epsilon", "layer_norm_eps")
        writer.add_layer_norm_eps(next(config[key] for key in keys if key in config))
        if self.type == "gpt_neox":
            writer.add_rope_dimension_count(int(hidden // self.heads * self.rope["partial_rotary_factor"]))
            writer.add_parallel_residual(config["use_parallel_residual"])
        if self.type == "mpt":
            attention = config["attn_config"]
            writer.add_max_alibi_bias(attention["alibi_bias_max"])
            if attention["clip_qkv"]:
                writer.add_clamp_kqv(attention["clip_qkv"])
        writer.add_file_type(0)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])

    def _name(self, name: str) -> str:
        return super()._name(name.removeprefix("transformer.") if self.type == "bloom" else name)

    def _changed(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if self.type == "gpt2" and name.endswith(TURNED):
            return [(name, value.T)]
        if self.type in BY_HEAD and ".query_key_value." in name:
            grouped = value.reshape(self.kv_heads, self.heads // self.kv_heads + 2, -1, *value.shape[1:])
            parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
            return [(name, np.concatenate([part.reshape(-1, *value.shape[1:]) for part in parts]))]
        return [(name, value)]


def convert_early(directory: Path, path: Path, kind: str = "F32") -> Path:
    """Write ``directory`` as a GGUF file."""
    EarlyConverter(directory, path, kind).run()
    return path
