"""Causal text models of transformers that it has only within models that see: its layers, and the head of the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    MistralLarge4TextConfig,
    Molmo2TextConfig,
    MuseGlimmerTextConfig,
    MuseSparkTextConfig,
    PreTrainedModel,
    Step3p7TextConfig,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.mistral_large4.modeling_mistral_large4 import (
    MistralLarge4PreTrainedModel,
    MistralLarge4TextModel,
)
from transformers.models.molmo2.modeling_molmo2 import Molmo2PreTrainedModel, Molmo2TextModel
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerPreTrainedModel, MuseGlimmerTextModel
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkPreTrainedModel, MuseSparkTextModel
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel


def register(name: str, config: type, base: type[PreTrainedModel], layers: type[PreTrainedModel]) -> None:
    """Let ``AutoModelForCausalLM`` build a model of ``layers`` with a head, of a class of this name.

    Args:
        config: The text model's config.
        base: What gives a new model its weights.
    """

    def __init__(self: Any, config: Any) -> None:
        base.__init__(self, config)
        self.model = layers(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    members = {
        "__init__": __init__, "forward": _logits, "config_class": config,
        "_tied_weights_keys": {"lm_head.weight": "model.embed_tokens.weight"},
    }  # fmt: skip
    AutoModelForCausalLM.register(config, type(name, (base, GenerationMixin), members), exist_ok=True)


def _logits(self: Any, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
    """Logits of (b, n) tokens; what the models that see do behind their head is done here, too."""
    config = self.config
    logits = self.lm_head(self.model(input_ids, use_cache=False).last_hidden_state)
    if getattr(config, "final_logit_softcapping", None):
        cap = config.final_logit_softcapping
        logits = cap * torch.tanh(logits * getattr(config, "output_multiplier", 1.0) / cap)
    return CausalLMOutput(logits=logits)


register("MistralLarge4ForCausalLM", MistralLarge4TextConfig, MistralLarge4PreTrainedModel, MistralLarge4TextModel)
register("Molmo2ForCausalLM", Molmo2TextConfig, Molmo2PreTrainedModel, Molmo2TextModel)
register("MuseGlimmerForCausalLM", MuseGlimmerTextConfig, MuseGlimmerPreTrainedModel, MuseGlimmerTextModel)
register("MuseSparkForCausalLM", MuseSparkTextConfig, MuseSparkPreTrainedModel, MuseSparkTextModel)
register("Step3p5ForCausalLM", Step3p7TextConfig, Step3p7PreTrainedModel, Step3p7TextModel)
