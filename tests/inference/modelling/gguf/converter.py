"""Convert a HuggingFace directory to GGUF for tests, with the names and the writer of the ``gguf`` package.

The steps are those of llama.cpp's converter, from its description; nothing here comes from the reader.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map, quants
from gguf.constants import MODEL_ARCH_NAMES
from safetensors.torch import load_file

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "mamba": "mamba", "falcon_mamba": "mamba", "mamba2": "mamba2", "jamba": "jamba",
    "granitemoe": "granitemoe", "granitemoeshared": "granitemoe",
    "granitemoehybrid": "granitehybrid", "bamba": "granitehybrid", "nemotron_h": "nemotron_h",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "gemma": "gemma", "phi": "phi2", "starcoder2": "starcoder2", "stablelm": "stablelm", "cohere": "command-r",
    "cohere2": "cohere2", "olmo": "olmo", "olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "glm": "chatglm",
    "glm4": "glm4", "glm4_moe": "glm4moe", "solar_open": "glm4moe", "granite": "granite", "smollm3": "smollm3",
    "exaone4": "exaone4", "exaone_moe": "exaone-moe", "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe",
    "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "seed_oss": "seed_oss",
    "nemotron": "nemotron", "jais2": "jais2", "arcee": "arcee", "minicpm3": "minicpm3", "dots1": "dots1",
    "minimax_m2": "minimax-m2", "internlm3": "llama", "mistral3": "mistral3", "ministral3": "mistral3",
    "falcon": "falcon", "bloom": "bloom", "gpt_neox": "gptneox", "gpt2": "gpt2", "gpt_bigcode": "starcoder",
    "mpt": "mpt", "apertus": "apertus", "phimoe": "phimoe", "afmoe": "afmoe",
    "youtu": "deepseek2", "glm4_moe_lite": "deepseek2", "falcon_h1": "falcon-h1",
    "glm_moe_dsa": "glm-dsa", "deepseek_v32": "deepseek32",
}  # fmt: skip
NAMED_AS = {
    "deepseek32": "glm-dsa", "mellum": "qwen3moe", "cohere2moe": "cohere2", "minimax-m3": "minimax-m2",
    "hy_v3": "exaone-moe", "laguna": "qwen3moe", "granite_swa": "granite", "minimax-01": "phimoe",
    "bailingmoe3": "kimi-linear", "hy_v4": "glm-dsa",
}  # fmt: skip
"""Architectures that are newer than the package, to those whose names of tensors they have."""
LATENT = ("deepseek2", "deepseek32", "glm-dsa")
PERMUTED = (
    "llama", "mistral", "mixtral", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "bamba", "olmo",
    "smollm3", "arcee", "internlm3", "mistral3", "ministral3",
)  # fmt: skip
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")


class Converter:
    """One conversion.

    Args:
        directory: config.json and safetensors.
        path: The file to write.
        kind: Type of the matrices whose columns are whole blocks; the others are F32.
        num_drafts: Layers behind those of the model.
    """

    def __init__(self, directory: Path, path: Path, kind: str = "F32", *, num_drafts: int = 0) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.tensors = {}
        for file in sorted(directory.glob("*.safetensors")):
            self.tensors |= {name: value.float().numpy() for name, value in load_file(file).items()}
        self.kind = GGMLQuantizationType[kind]
        self.type = self.config["model_type"]
        arch = ARCHITECTURES[self.type]
        if self.type == "nemotron_h" and any(".experts." in name for name in self.tensors):
            arch = "nemotron_h_moe"
        numbers = [
            int(match[1]) for match in map(re.compile(r".*(?:layers|h|blocks)\.(\d+)\.").match, self.tensors) if match
        ]
        self.num_layers = 1 + max(numbers) + num_drafts
        self.names = get_tensor_name_map(
            next(key for key, name in MODEL_ARCH_NAMES.items() if name == NAMED_AS.get(arch, arch)),
            self.num_layers,
        )
        self.writer = GGUFWriter(path, arch)
        self.heads = self.config.get("num_attention_heads", 0)
        self.kv_heads = self.config.get("num_key_value_heads") or self.heads
        self.rope = dict(self.config.get("rope_parameters") or {})

    def run(self) -> None:
        """Write the file."""
        self._keys()
        for name, value in self._tensors().items():
            block, _ = quants.GGML_QUANT_SIZES[self.kind]
            is_matrix = not re.search(r"norm|ssm_(?!in|out|ba|beta|alpha)", name)
            if value.ndim >= 2 and value.shape[-1] % block == 0 and is_matrix:
                self.writer.add_tensor(name, quants.quantize(value, self.kind), raw_dtype=self.kind)
            else:
                self.writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    # --- metadata ---

    def _keys(self) -> None:
        config, writer = self.config, self.writer
        writer.add_block_count(self.num_layers)
        writer.add_context_length(config.get("max_position_embeddings") or 2**20)
        writer.add_embedding_length(config["hidden_size"])
        eps = next(config[key] for key in ("rms_norm_eps", "layer_norm_epsilon", "norm_eps") if key in config)
        writer.add_layer_norm_rms_eps(eps)
        writer.add_file_type(0)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if "mamba" in self.type and self.type != "bamba":
            writer.add_head_count(0)
            writer.add_feed_forward_length(0)
            self._state_space(config)
            return
        self._attention()
        self._experts()
        if self.type in ("jamba", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1"):
            self._state_space(config)

    def _attention(self) -> None:
        config, writer = self.config, self.writer
        writer.add_head_count(self.heads)
        kinds = [f".{number}." for number in range(self.num_layers)]
        with_attention = [any(kind in name and "q_proj" in name for name in self.tensors) for kind in kinds]
        fused = "kv_lora_rank" in self.config or self.type == "phi3" or "qwen3_" in self.type or all(with_attention)
        writer.add_head_count_kv(
            self.kv_heads if fused else [self.kv_heads if found else 0 for found in with_attention]
        )
        width = config.get("intermediate_size")
        if self.type == "nemotron_h":
            dense = [any(kind in name and "mixer.up_proj.w" in name for name in self.tensors) for kind in kinds]
            writer.add_feed_forward_length([width if found else 0 for found in dense])
        elif width:
            writer.add_feed_forward_length(width)
        head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        is_latent = ARCHITECTURES[self.type] in LATENT
        if config.get("head_dim") and not is_latent:
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
        self._rope(head_dim)
        if is_latent:
            self._latent()
        for key, add in (
            ("sliding_window", writer.add_sliding_window),
            ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
            ("final_logit_softcapping", writer.add_final_logit_softcapping),
            ("embedding_multiplier", writer.add_embedding_scale),
            ("residual_multiplier", writer.add_residual_scale),
            ("attention_multiplier", writer.add_attention_scale),
            ("logits_scaling", writer.add_logit_scale),
        ):
            if config.get(key) is not None and self.type not in ("mistral", "mixtral", "qwen2", "qwen3"):
                add(config[key])
        if self.type in ("granitemoehybrid", "bamba"):
            writer.add_rope_scaling_finetuned(self.type == "bamba" or config.get("position_embedding_type") == "rope")

    def _rope(self, head_dim: int) -> None:
        config, rope, writer = self.config, self.rope, self.writer
        if self.type == "gemma3_text":
            rope, local = rope["full_attention"], rope["sliding_attention"]
            writer.add_rope_freq_base_swa(local["rope_theta"])
        if self.type in ("jamba", "nemotron_h"):
            return
        rotated = config.get("qk_rope_head_dim") or int(head_dim * rope.get("partial_rotary_factor", 1.0))
        writer.add_rope_dimension_count(rotated)
        theta = rope.get("rope_theta", 10000.0)
        writer.add_rope_freq_base(theta)
        kind = rope.get("rope_type", "default")
        if kind == "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "beta_fast" in rope:
                writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
                writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
            if "mscale_all_dim" in rope:
                writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        if kind == "longrope":
            original = rope["original_max_position_embeddings"]
            scale = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
            for name in ("long", "short"):
                self.tensors[f"rope_factors_{name}.weight"] = np.array(rope[f"{name}_factor"], dtype=np.float32)
        if kind == "llama3":
            self.tensors["rope_freqs.weight"] = llama3_factors(rope, theta, rotated)

    def _latent(self) -> None:
        config, writer = self.config, self.writer
        rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
        writer.add_kv_lora_rank(rank)
        if config.get("q_lora_rank"):
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_key_length(rank + rotated)
        writer.add_value_length(rank)
        writer.add_key_length_mla(config["qk_nope_head_dim"] + rotated)
        writer.add_value_length_mla(config["v_head_dim"])
        if self.type == "youtu":
            writer.add_leading_dense_block_count(self.num_layers)
            writer.add_expert_shared_count(0)
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            return
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        if self.type == "glm4_moe_lite":
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
            return  # no config.json of it states the function of the scores
        if "index_topk" in config:
            writer.add_indexer_head_count(config["index_n_heads"])
            writer.add_indexer_key_length(config["index_head_dim"])
            writer.add_indexer_top_k(config["index_topk"])
        is_third = self.type != "deepseek_v2"
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID if is_third else ExpertGatingFuncType.SOFTMAX)
        writer.add_expert_weights_norm(bool(is_third and config["norm_topk_prob"]))
        if is_third or config.get("topk_method") == "group_limited_greedy":
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])

    def _experts(self) -> None:
        config, writer = self.config, self.writer
        count = next(
            (config[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if config.get(key)), 0
        )
        if not any("experts" in name or "block_sparse_moe" in name for name in self.tensors):
            return
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        for key in (
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ):
            if config.get(key):
                writer.add_expert_shared_feed_forward_length(config[key])
        if self.type == "nemotron_h":
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])

    def _state_space(self, config: dict[str, Any]) -> None:
        writer = self.writer

        def first(*keys: str) -> int:
            return next(config[key] for key in keys if config.get(key) is not None)

        writer.add_ssm_conv_kernel(first("mamba_d_conv", "conv_kernel"))
        writer.add_ssm_state_size(first("mamba_d_state", "ssm_state_size", "state_size"))
        if self.type in ("mamba", "falcon_mamba", "jamba"):
            writer.add_ssm_time_step_rank(first("mamba_dt_rank", "time_step_rank"))
            writer.add_ssm_inner_size(first("mamba_expand", "expand") * config["hidden_size"])
            if self.type == "falcon_mamba":
                writer.add_ssm_dt_b_c_rms(True)
            return
        count = first("mamba_n_heads", "mamba_num_heads", "num_heads")
        writer.add_ssm_time_step_rank(count)
        writer.add_ssm_inner_size(count * first("mamba_d_head", "mamba_head_dim", "head_dim"))
        writer.add_ssm_group_count(first("mamba_n_groups", "n_groups"))

    # --- tensors ---

    def _tensors(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        stacks: dict[str, dict[int, np.ndarray]] = {}
        for name, value in self.tensors.items():
            match = EXPERT.fullmatch(name)
            if match:
                stacks.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = value
                continue
            for changed, item in self._changed(name, value):
                found[self._name(changed)] = item
        for name, parts in stacks.items():
            found[self._name(name)] = np.stack([parts[number] for number in range(len(parts))])
        return found

    def _name(self, name: str) -> str:
        if name.startswith(("rope_", "blk.")):
            return name
        if "mixer.experts" in name:  # the converter stacks them under another name
            name = name.replace("backbone.", "model.").replace("mixer.experts", "mlp.experts")
        found = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        if name.endswith("e_score_correction_bias"):
            found += ".bias"
        return found

    def _changed(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if self.type == "falcon_h1":
            value = value * self._falcon_h1_factors(name)
        bid = re.search(r"layers\.(\d+)\.", name)
        number = bid[1] if bid else ""
        if self.type in PERMUTED and re.search(r"self_attn\.[qk]_proj", name):
            return [(name, permuted(value, self.heads if "q_proj" in name else self.kv_heads))]
        if self.type.startswith("gemma") and name.endswith("norm.weight"):
            return [(name, value + 1)]
        if name.endswith("kv_b_proj.weight"):
            nope, wide = self.config["qk_nope_head_dim"], self.config["v_head_dim"]
            whole = value.reshape(self.heads, nope + wide, -1)
            return [
                (name.replace("kv_b_proj", "k_b_proj"), whole[:, :nope].transpose(0, 2, 1)),
                (name.replace("kv_b_proj", "v_b_proj"), whole[:, nope:]),
            ]
        if name.endswith("input_linear.weight"):
            gate, up = np.split(value, 2, axis=-2)
            if "shared_mlp" in name:
                ends = ("_shexp", "_shexp") if self.config.get("num_local_experts") else ("", "")
            else:
                ends = ("_exps", "_exps")
            return [(f"blk.{number}.ffn_gate{ends[0]}.weight", gate), (f"blk.{number}.ffn_up{ends[1]}.weight", up)]
        if name.endswith("shared_mlp.output_linear.weight") and not self.config.get("num_local_experts"):
            return [(f"blk.{number}.ffn_down.weight", value)]
        if name.endswith("e_score_correction_bias"):
            return [(f"blk.{number}.exp_probs_b.bias", value)]
        if name.endswith("shared_expert_gate.weight"):
            return [(name, value[0])]
        return self._state_space_tensor(name, value, number)

    def _falcon_h1_factors(self, name: str) -> Any:
        """What the converter multiplies a tensor by: a number, or a column with a factor for each row."""
        config = self.config
        gate, down = config["mlp_multipliers"] or (1.0, 1.0)
        into = config["attention_in_multiplier"]
        factors = {
            "down_proj.weight": down,
            "gate_proj.weight": gate,
            "q_proj.weight": into,
            "k_proj.weight": into * config["key_multiplier"],
            "v_proj.weight": into,
            "self_attn.o_proj.weight": config["attention_out_multiplier"],
            "mamba.out_proj.weight": config["ssm_out_multiplier"],
            "lm_head.weight": config["lm_head_multiplier"],
            "embed_tokens.weight": config["embedding_multiplier"],
        }
        if name.endswith("mamba.in_proj.weight"):
            inner = config["mamba_n_heads"] * config["mamba_d_head"]
            states = config["mamba_n_groups"] * config["mamba_d_state"]
            widths = [inner, inner, states, states, config["mamba_n_heads"]]
            return config["ssm_in_multiplier"] * np.repeat(config["ssm_multipliers"] or [1.0] * 5, widths)[:, None]
        return next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)

    def _state_space_tensor(self, name: str, value: np.ndarray, number: str) -> list[tuple[str, np.ndarray]]:
        is_second = self.type in ("mamba2", "bamba", "granitemoehybrid", "nemotron_h", "falcon_h1")
        if name.endswith("A_log"):
            value = -np.exp(value)
            return [(name, value[:, None] if is_second else value)]
        if name.endswith(".D") and is_second:
            return [(name, value[:, None])]
        if name.endswith("dt_bias"):
            return [(f"blk.{number}.ssm_dt.bias", value)]
        if name.endswith("conv1d.weight"):
            return [(name, value[:, 0])]
        if is_second and name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            groups = self.config.get("mamba_n_groups") or self.config.get("n_groups")
            return [(name, value.reshape(groups, -1))]
        return [(name, value)]


def permuted(value: np.ndarray, heads: int) -> np.ndarray:
    """The two halves of each rotary pair become neighbours."""
    rows = value.shape[0] // heads
    return value.reshape(heads, 2, rows // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def llama3_factors(rope: dict[str, Any], theta: float, rotated: int) -> np.ndarray:
    """By what the frequencies are divided."""
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for index in range(0, rotated, 2):
        wave = 2 * math.pi * theta ** (index / rotated)
        if wave < old / high:
            factors.append(1.0)
        elif wave > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def convert(directory: Path, path: Path, kind: str = "F32") -> Path:
    """Write ``directory`` as a GGUF file."""
    Converter(directory, path, kind).run()
    return path
