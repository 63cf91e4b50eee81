"""Tiny random checkpoints with a head for multi-token prediction, and an oracle of the head's logits.

transformers leaves these heads out. What is special to them is written here from the formula of DeepSeek-V3's report
(section 2.2): joined = eh_proj [enorm(embedding of the next token); hnorm(row)]. The layers behind it are layers of the
family, so a second transformers model with just these layers and the head's final norm computes them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from inference.modelling.network import HybridForCausalLM
from inference.modelling.prediction_head import PredictionHead
from inference.modelling.weights.loader import load_prediction_head
from tests.inference.modelling.harness import load_directory
from tests.inference.modelling.test_network_attention import BASE, MLA
from tests.inference.modelling.test_network_dense import GROUPED
from tests.inference.modelling.test_network_linear import DELTA, EXPERTS
from tests.inference.modelling.test_network_recurrent import NEMOTRON, make_model, rewrite_config

VOCAB = 80
GLM = {**BASE, **GROUPED, "n_shared_experts": 1, "attention_bias": True, "use_qk_norm": True, "head_dim": 8}
DEEPSEEK = {**BASE, **MLA, "q_lora_rank": 20, "n_group": 4, "topk_group": 2}


@dataclass(frozen=True)
class Case:
    """A family with a head.

    Attributes:
        family: Name of transformers' classes.
        values: Config of the model.
        head: What is different in the config of the head's layers.
        prefix: Start of the names of the head's tensors.
        final_norm: Name of its final norm, after ``prefix``.
        inputs: Names of eh_proj and the norms of embedding and row.
        offset: What the norms add to their weights.
        feeds_normed_rows: Whether the row after the final norm is read to go on.
        extra: Keys of config.json that transformers doesn't know.
    """

    family: str
    values: dict[str, Any]
    head: dict[str, Any]
    prefix: str
    final_norm: str
    inputs: tuple[str, str, str]
    offset: float = 0.0
    feeds_normed_rows: bool = True
    extra: dict[str, Any] | None = None


def _qwen(family: str, values: dict[str, Any]) -> Case:
    values = {**DELTA, **values, "vocab_size": VOCAB}
    head = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    return Case(family, values, head, "mtp.", "norm", names, 1.0, extra={"mtp_num_hidden_layers": 1})


def _behind_layers(family: str, values: dict[str, Any]) -> Case:
    head = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    prefix = f"model.layers.{values['num_hidden_layers']}."
    names = ("eh_proj", "enorm", "hnorm")
    values = {**values, "vocab_size": VOCAB}
    extra = {"num_nextn_predict_layers": 1}
    return Case(family, values, head, prefix, "shared_head.norm", names, 0.0, feeds_normed_rows=False, extra=extra)


CASES = {
    "nemotron_h": Case(
        "NemotronH",
        {**NEMOTRON, "vocab_size": VOCAB, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        {"layers_block_type": ["full_attention", "moe"]},
        "mtp.",
        "layers.1.final_layernorm",
        ("layers.0.eh_proj", "layers.0.enorm", "layers.0.hnorm"),
        extra={"num_nextn_predict_layers": 1},
    ),
    "qwen3_next": _qwen("Qwen3Next", EXPERTS),
    "qwen3_5": _qwen("Qwen3_5Text", {"tie_word_embeddings": True}),
    "qwen3_5_moe": _qwen("Qwen3_5MoeText", EXPERTS),
    "deepseek_v3": _behind_layers("DeepseekV3", DEEPSEEK),
    "glm4_moe": _behind_layers("Glm4Moe", GLM),
}


@dataclass(frozen=True)
class Reference:
    """The model and its head in transformers.

    Attributes:
        model: transformers' model.
        layers: transformers' model of the head's layers and final norm.
        tensors: eh_proj and the two norms.
    """

    case: Case
    model: torch.nn.Module
    layers: torch.nn.Module
    tensors: dict[str, torch.Tensor]
    eps: float

    @torch.inference_mode()
    def rows_of_model(self, tokens: list[int]) -> torch.Tensor:
        """(n, h) after the model's final norm."""
        return self.model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor, next_tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The head's (n, V) logits after rows p of the model and tokens p + 1, and the rows it goes on with."""
        projection, embedding_norm, hidden_norm = (self.tensors[name] for name in self.case.inputs)
        embedded = self.model.get_input_embeddings()(torch.tensor(next_tokens))
        joined = torch.cat([self._norm(embedded, embedding_norm), self._norm(rows, hidden_norm)], -1) @ projection.T
        before: list[torch.Tensor] = []
        inner = self.layers.model
        norm = inner.norm_f if hasattr(inner, "norm_f") else inner.norm
        hook = norm.register_forward_pre_hook(lambda module, args: before.append(args[0][0].clone()))
        normed = inner(inputs_embeds=joined.unsqueeze(0), use_cache=False).last_hidden_state[0]
        hook.remove()
        return self.model.lm_head(normed), normed if self.case.feeds_normed_rows else before[0]

    def _norm(self, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)
        return values * scale * (weight + self.case.offset)


def write_checkpoint(name: str, directory: Path) -> Reference:
    """Write the model with its head."""
    case = CASES[name]
    model = make_model(case.family, case.values)
    layers = make_model(case.family, {**case.values, **case.head}, seed=1)
    model.save_pretrained(directory)
    layers.save_pretrained(directory / "head")
    tensors = load_file(directory / "model.safetensors")
    start = case.prefix if case.prefix.startswith("model") else f"{case.prefix}layers."
    for key, value in load_file(directory / "head" / "model.safetensors").items():
        layer = re.fullmatch(r"(?:model|backbone)\.layers\.(\d+)\.(.*)", key)
        if layer is not None:
            number = "" if case.prefix.startswith("model") else f"{layer[1]}."
            tensors[f"{start}{number}{layer[2]}"] = value
        elif key.endswith((".norm.weight", ".norm_f.weight")):
            tensors[f"{case.prefix}{case.final_norm}.weight"] = value
    for path in (directory / "head").iterdir():
        path.unlink()
    (directory / "head").rmdir()
    generator = torch.Generator().manual_seed(3)
    width = case.values["hidden_size"]
    projection, *norms = case.inputs
    own = {projection: torch.randn(width, 2 * width, generator=generator) * (2 * width) ** -0.5}
    own |= {norm: torch.rand(width, generator=generator) + 0.5 - case.offset for norm in norms}
    tensors |= {f"{case.prefix}{leaf}.weight": value for leaf, value in own.items()}
    if case.prefix.startswith("model"):  # copies of the model's, as in the published files
        tensors[f"{case.prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{case.prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = rewrite_config(directory, **(case.extra or {}))
    (directory / "config.json").write_text(json.dumps(config))
    eps = getattr(model.config, "rms_norm_eps", None) or model.config.layer_norm_epsilon
    return Reference(case, model, layers, own, eps)


def load_with_head(directory: Path) -> tuple[HybridForCausalLM, PredictionHead]:
    """Both in float32."""
    network = load_directory(directory)
    spec = network.spec.prediction_head
    assert spec is not None
    return network, load_prediction_head(spec, [directory / "model.safetensors"], dtype=torch.float32)
