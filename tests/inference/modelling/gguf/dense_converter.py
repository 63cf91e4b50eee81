"""Convert attention decoders that differ from Llama in names and options to GGUF for tests.

As ``converter.py``: the steps are those of llama.cpp's converter, from its description.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType

from tests.inference.modelling.gguf.converter import Converter

WINDOWED = {"cohere2": False, "olmo3": True, "exaone4": True, "exaone_moe": True, "afmoe": False, "phimoe": False}
"""Types whose window is written; whether the layers with it are too."""
STATES_ROTATED = (
    "phi", "stablelm", "cohere2", "glm", "glm4", "glm4_moe", "solar_open", "nemotron", "minimax_m2", "internlm3",
    "arcee", "smollm3", "jais2", "mistral3", "ministral3", "granite", "granitemoe", "granitemoeshared",
    "phimoe", "afmoe", "apertus",
)  # fmt: skip
"""Types that state how much of a head is rotated."""
SIGMOID = ("glm4_moe", "solar_open", "dots1", "exaone_moe", "minimax_m2")
HEAD_NORM = re.compile(r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.weight")


class DenseConverter(Converter):
    """One conversion.

    Args:
        fused_qkv: Queries, keys and values are one tensor, as the first files of Phi-2 and GLM-4 have them.
        drafts: How many layers behind the model's draft tokens; their tensors are in the checkpoint.
    """

    def __init__(
        self, directory: Path, path: Path, kind: str = "F32", *, fused_qkv: bool = False, drafts: int = 0
    ) -> None:
        self.fused_qkv, self.drafts = fused_qkv, drafts
        super().__init__(directory, path, kind)

    # --- metadata ---

    def _keys(self) -> None:
        config, writer = self.config, self.writer
        self.types = config.get("layer_types") or []
        if "full_attention" in self.rope:
            writer.add_rope_freq_base_swa(self.rope["sliding_attention"]["rope_theta"])
            self.rope = dict(self.rope["full_attention"])
        writer.add_block_count(self.num_layers)
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        for key, add in (
            ("rms_norm_eps", writer.add_layer_norm_rms_eps),
            ("norm_eps", writer.add_layer_norm_eps),
            ("layer_norm_eps", writer.add_layer_norm_eps),
            ("norm_epsilon", writer.add_layer_norm_eps),
            ("logit_scale", writer.add_logit_scale),
            ("clip_qkv", writer.add_clamp_kqv),
            ("embedding_multiplier", writer.add_embedding_scale),
            ("residual_multiplier", writer.add_residual_scale),
            ("attention_multiplier", writer.add_attention_scale),
            ("logits_scaling", writer.add_logit_scale),
        ):
            if config.get(key) is not None:
                add(config[key])
        if self.type == "olmo":
            writer.add_layer_norm_eps(1e-5)
        if self.type == "stablelm":
            writer.add_parallel_residual(config["use_parallel_residual"])
        self._rotation()
        if self.type in WINDOWED and config["sliding_window"]:
            writer.add_sliding_window(config["sliding_window"])
            if WINDOWED[self.type]:
                writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in self.types])
        self._routing()
        if self.type == "apertus":
            for key, add in (("alpha_p", writer.add_xielu_alpha_p), ("alpha_n", writer.add_xielu_alpha_n)):
                names = [f"model.layers.{number}.mlp.act_fn.{key}" for number in range(self.num_layers)]
                add([float(self.tensors.pop(name)[0]) for name in names])
            self.tensors = {name: value for name, value in self.tensors.items() if ".act_fn." not in name}
        writer.add_file_type(0)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    def _rotation(self) -> None:
        config, writer = self.config, self.writer
        stated = None if "granite" in self.type or self.type == "glm" else config.get("head_dim")
        width = stated or config["hidden_size"] // self.heads
        if stated:
            writer.add_key_length(stated)
            writer.add_value_length(stated)
        if self.type == "minicpm3":
            writer.add_q_lora_rank(config["q_lora_rank"])
            writer.add_kv_lora_rank(config["kv_lora_rank"])
            writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
            writer.add_rope_dimension_count(config["qk_rope_head_dim"])
            return
        if "alpha" in self.rope:
            theta = self.rope["rope_theta"] * self.rope["alpha"] ** (width / (width - 2))
            self.rope = {"rope_type": "default", "rope_theta": theta}
        if "rotary_dim" in config:
            self.rope["partial_rotary_factor"] = config["rotary_dim"] / width
        self._rope(width)
        if "llama_4_scaling_beta" in self.rope:
            writer.add_attn_temperature_scale(self.rope["llama_4_scaling_beta"])
            if "mscale_all_dim" in self.rope:
                del writer.kv_data[0][f"{writer.arch}.rope.scaling.yarn_log_multiplier"]
                writer.add_rope_scaling_yarn_log_mul(self.rope["mscale_all_dim"])
        if self.type not in STATES_ROTATED:
            del writer.kv_data[0][f"{writer.arch}.rope.dimension_count"]
        if self.type in ("gemma", "stablelm", "phi"):
            assert writer.kv_data[0].pop(f"{writer.arch}.rope.freq_base").value == 10000.0

    def _routing(self) -> None:
        config, writer = self.config, self.writer
        count = next(
            (config[key] for key in ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
             if config.get(key)), 0,
        )  # fmt: skip
        if not count:
            return
        used = config.get("moe_k") or config.get("moe_topk") or config["num_experts_per_tok"]
        writer.add_expert_count(count)
        writer.add_expert_used_count(used[0] if isinstance(used, list) else used)
        for key, add in (
            ("moe_intermediate_size", writer.add_expert_feed_forward_length),
            ("shared_intermediate_size", writer.add_expert_shared_feed_forward_length),
            ("n_shared_experts", writer.add_expert_shared_count),
            ("num_shared_experts", writer.add_expert_shared_count),
            ("moe_num_shared_experts", writer.add_expert_shared_count),
            ("first_k_dense_replace", writer.add_leading_dense_block_count),
            ("moe_layer_start_index", writer.add_leading_dense_block_count),
            ("moe_layer_interval", writer.add_interleave_moe_layer_step),
            ("num_dense_layers", writer.add_leading_dense_block_count),
            ("route_scale", writer.add_expert_weights_scale),
            ("routed_scaling_factor", writer.add_expert_weights_scale),
            ("norm_topk_prob", writer.add_expert_weights_norm),
            ("n_group", writer.add_expert_group_count),
            ("topk_group", writer.add_expert_group_used_count),
        ):
            if config.get(key) is not None and (self.type, key) != ("olmoe", "norm_topk_prob"):
                add(config[key])
        if self.type in ("hunyuan_v1_moe", "minimax_m2"):
            writer.add_expert_feed_forward_length(config["intermediate_size"])
        if self.type in SIGMOID:
            writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        if self.drafts:
            writer.add_nextn_predict_layers(self.drafts)

    # --- tensors ---

    def _tensors(self) -> dict[str, np.ndarray]:
        norms: dict[str, dict[int, np.ndarray]] = {}
        for name in list(self.tensors):
            match = HEAD_NORM.fullmatch(name)
            if match:
                norms.setdefault(f"{match[1]}.weight", {})[int(match[2])] = self.tensors.pop(name)
        for name, parts in norms.items():
            self.tensors[name] = np.stack([parts[number] for number in range(len(parts))])
        found = super()._tensors()
        if self.fused_qkv:
            for name in [name for name in found if ".attn_q." in name]:
                parts = [found.pop(name.replace("attn_q", f"attn_{letter}")) for letter in "qkv"]
                found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
        return found

    def _changed(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if name.endswith(".expert_bias"):
            return [(name.replace("model.layers", "blk").replace("mlp.expert_bias", "exp_probs_b.bias"), value)]
        if self.type == "nemotron" and name.endswith("norm.weight"):
            return [(name, value + 1)]
        if self.type == "minicpm3":
            return [(name, value)]
        return super()._changed(name, value)


def convert_dense(directory: Path, path: Path, kind: str = "F32", **how: bool | int) -> Path:
    """Write ``directory`` as a GGUF file."""
    DenseConverter(directory, path, kind, **how).run()
    return path
