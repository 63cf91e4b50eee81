"""Tiny random checkpoints made by transformers, and transformers as the oracle of their logits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    Mistral4Config,
    Mistral4ForCausalLM,
    PretrainedConfig,
)

from tests.inference.modelling import text_models

assert text_models  # it tells transformers of models
# transformers has it among the models that see.
AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)

CENTRED = ("gemma", "step3p", "muse_")
"""Starts of the types whose norms multiply by 1 + weight, which is stored around zero."""
PLAIN_GEMMAS = ("gemma3n", "gemma4")
"""Gemmas whose norms multiply by the weight itself."""
ROUGH = ("dbrx",)
"""In float32 transformers is up to 1e-4 away from itself in float64; their oracle computes in float64."""
Oracle = Callable[[torch.Tensor], torch.Tensor]


def make_checkpoint(
    config: PretrainedConfig, directory: Path, *, seed: int = 0, stacked: bool = False
) -> tuple[Path, Oracle]:
    """Save a randomly initialised model.

    Weights are larger than at the start of a training, so that scores, gates and routing differ between
    tokens and a wrong mask or rotation shows far above the tolerance.

    Args:
        config: Of the model; small.
        directory: Where the files go.
        seed: Of the weights.
        stacked: Save experts as transformers 5 keeps them in memory, instead of one by one.

    Returns:
        The directory, and a function from token ids (n,) to logits (n, V).
    """
    torch.manual_seed(seed)
    # With ALiBi, transformers' eager Falcon adds the distances twice.
    attention = "sdpa" if getattr(config, "alibi", False) else "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    enlarge(model, config.model_type, seed)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, save_original_format=not stacked)
    if config.model_type in ROUGH:
        model.double()

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    return directory, oracle


def enlarge(model: torch.nn.Module, model_type: str, seed: int = 0) -> None:
    """Give a new model larger weights, as ``make_checkpoint`` says."""
    generator = torch.Generator().manual_seed(seed)
    saved = model.state_dict()
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name not in saved:
                continue  # masks and tables of positions
            if name.endswith("tid2eid"):
                value.random_(model.config.n_routed_experts, generator=generator)
                continue
            noise = torch.randn(value.shape, generator=generator)
            if "e_score_correction_bias" in name:
                value.copy_(0.2 * noise)
            elif ("norm" in name and ".mlp." not in name) or re.search(r"\bln_\w+\.weight$", name):
                is_centred = model_type.startswith(CENTRED) and not model_type.startswith(PLAIN_GEMMAS)
                value.copy_(0.2 * noise + (0.0 if is_centred else 1.0))
            elif name.endswith(("_expert_norm.weight", "_residual_gate.gate")):
                value.copy_(0.4 * noise)
            elif "softmax_scaling" in name or name.endswith("rotary_emb.alpha"):
                value.copy_(0.3 * noise + name.endswith("bias"))
            elif value.dim() == 1 and name.endswith(("layer_scalar", "scale")):
                value.copy_(0.2 * noise + 1.0)
            elif value.dim() == 1 and name.endswith("bias"):
                value.copy_(0.2 * noise)
            elif name.endswith(("_hc.base", "_hc.scale", "hc_base", "hc_scale", ".alpha_p", ".alpha_n", ".sinks")):
                value.copy_(noise)
            elif value.dim() >= 2:
                value.copy_(noise * (1.0 if "embed" in name else 1.5 * value.shape[-1] ** -0.5))


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as transformers 5 saved it."""
    return json.loads((directory / "config.json").read_text())


def old_naming(config: dict[str, Any]) -> dict[str, Any]:
    """The same config as the files on the hub spell it that were written before transformers 5."""
    old = dict(config)
    old["torch_dtype"] = old.pop("dtype", "float32")
    rope = dict(old.pop("rope_parameters", None) or {})
    if rope.get("full_attention"):  # Gemma 3
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    old["rope_theta"] = rope.pop("rope_theta", 10000.0)
    kind = rope.pop("rope_type", "default")
    partial = rope.pop("partial_rotary_factor", None)
    if partial is not None:
        old["partial_rotary_factor"] = partial
    old["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    return old


def make_wrapped_checkpoint(
    config: PretrainedConfig, directory: Path, *, is_of_hub: bool, enlarged: bool = False
) -> Oracle:
    """Save a randomly initialised model that sees pictures or hears.

    Args:
        is_of_hub: Name the tensors as the files of the hub do, not as transformers 5 does.
        enlarged: Weights are those of ``make_checkpoint``.

    Returns:
        A function from token ids (n,) to logits (n, V).
    """
    torch.manual_seed(0)
    auto = (
        AutoModelForImageTextToText
        if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        else AutoModelForMultimodalLM
    )
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    if enlarged:
        enlarge(model, config.model_type)
    model.save_pretrained(directory, save_original_format=is_of_hub)

    def oracle(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return model(tokens.unsqueeze(0), use_cache=False).logits[0].float()

    return oracle
