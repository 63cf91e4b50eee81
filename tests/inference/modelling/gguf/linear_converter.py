"""Convert checkpoints with short convolutions or layers of the delta rule to GGUF for tests.

As ``converter.py``: the steps are those of llama.cpp's converter, from its description.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType

from tests.inference.modelling.gguf.converter import Converter

DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


class LinearConverter(Converter):
    """One conversion.

    Args:
        in_heads: Qwen3-Next's projections stay head by head, as the first files had them.
        fused: Gates and ups of experts are one tensor.
        drafts: How many of the last layers are for drafting; their tensors are ``mtp.*``.
    """

    def __init__(
        self, directory: Path, path: Path, kind: str = "F32", *, in_heads: bool = False, fused: bool = False,
        drafts: int = 0,
    ) -> None:  # fmt: skip
        self.in_heads, self.fused, self.drafts = in_heads, fused, drafts
        super().__init__(directory, path, kind, num_drafts=drafts)

    def _keys(self) -> None:
        super()._keys()
        config, writer = self.config, self.writer
        if self.type not in DELTA:
            writer.add_vocab_size(config["vocab_size"])
            writer.add_shortconv_l_cache(config["conv_L_cache"])
            if self.type == "lfm2_moe":
                writer.add_leading_dense_block_count(config["num_dense_layers"])
                writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
            return
        values = config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * values)
        writer.add_full_attention_interval(4)
        if self.type != "qwen3_next":
            writer.add_rope_dimension_sections([11, 11, 10, 0])
        if self.drafts:
            writer.add_nextn_predict_layers(self.drafts)

    def _tensors(self) -> dict[str, np.ndarray]:
        found = super()._tensors()
        if self.fused:
            for name in [name for name in found if name.endswith("ffn_gate_exps.weight")]:
                both = [found.pop(name), found.pop(name.replace("gate", "up"))]
                found[name.replace("ffn_gate", "ffn_gate_up")] = np.concatenate(both, axis=1)
        return found

    def _name(self, name: str) -> str:
        if name.startswith("mtp."):
            return self._draft_name(name)
        # The converter stacks LFM2's experts under another name.
        return super()._name(name.removeprefix("model.") if "feed_forward.experts" in name else name)

    def _changed(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if name.endswith("conv.conv.weight"):
            return [(name, value[:, 0])]
        if name.endswith("expert_bias"):
            return [(f"{self._block(name)}exp_probs_b.bias", value)]
        if self.type not in DELTA:
            return super()._changed(name, value)
        if name.startswith("mtp."):
            name = self._draft_name(name)
        if name.endswith("norm.weight") and "linear_attn" not in name:
            value = value + 1
        if "linear_attn." not in name:
            return super()._changed(name, value)
        if self.type == "qwen3_next":
            return self._qwen3_next(name, value)
        return super()._changed(name, self._in_repeats(name, value))

    def _draft_name(self, name: str) -> str:
        first = self.num_layers - self.drafts
        outer = {
            "mtp.fc.weight": "eh_proj", "mtp.pre_fc_norm_embedding.weight": "enorm",
            "mtp.pre_fc_norm_hidden.weight": "hnorm", "mtp.norm.weight": "shared_head_norm",
        }  # fmt: skip
        if name in outer:
            return f"blk.{first}.nextn.{outer[name]}.weight"
        _, _, number, rest = name.split(".", 3)
        return self._name(f"model.layers.{first + int(number)}.{rest}")

    def _qwen3_next(self, name: str, value: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The projections head by head become one below the other; beta and alpha stay as they are."""
        block, config = self._block(name), self.config
        if name.endswith("in_proj_ba.weight"):
            return [(f"{block}ssm_ba.weight", value)]
        if not name.endswith("in_proj_qkvz.weight"):
            return super()._changed(name, value)
        if self.in_heads:
            return [(f"{block}ssm_in.weight", value)]
        keys, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
        wide = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        parts = np.split(value.reshape(keys, -1, value.shape[1]), np.cumsum([key, key, wide]), axis=1)
        query, key, values, gate = (part.reshape(-1, value.shape[1]) for part in parts)
        return [
            (f"{block}attn_qkv.weight", np.concatenate([query, key, values])),
            (f"{block}attn_gate.weight", gate),
        ]

    def _in_repeats(self, name: str, value: np.ndarray) -> np.ndarray:
        """Qwen 3.5's value heads: the first of each key head, then the second of each."""
        keys, values = self.config["linear_num_key_heads"], self.config["linear_num_value_heads"]
        width = values * self.config["linear_value_head_dim"]
        if name.endswith("linear_attn.norm.weight"):
            return value
        if name.endswith("out_proj.weight"):
            return self._tiled(value.T, keys, values).T
        kept = len(value) - width if "in_proj_qkv" in name or "conv1d" in name else 0
        return np.concatenate([value[:kept], self._tiled(value[kept:], keys, values)])

    @staticmethod
    def _tiled(rows: np.ndarray, keys: int, values: int) -> np.ndarray:
        heads = np.split(rows, values)
        repeats = values // keys
        return np.concatenate([heads[key * repeats + place] for place in range(repeats) for key in range(keys)])

    @staticmethod
    def _block(name: str) -> str:
        found = re.search(r"layers\.(\d+)\.", name)
        assert found is not None
        return f"blk.{found[1]}."


def convert_linear(directory: Path, path: Path, kind: str = "F32", **how: bool | int) -> Path:
    """Write ``directory`` as a GGUF file."""
    LinearConverter(directory, path, kind, **how).run()
    return path
