"""Make config.json of the metadata of Gemma 3n.

Sources: what llama.cpp's converter writes (``conversion/gemma.py``). Standard library only.
"""

from __future__ import annotations

from statistics import NormalDist

from inference.modelling.gguf.config_parts import Config, decoder, given, rope, window_types
from inference.modelling.gguf.metadata import Metadata, shortest

LOCAL_THETA = 10000.0
LOGITS_CAP = 30.0
PATTERN = 5
"""Every so many layers, one sees all positions, unless the file states which."""
_SPARSITY = "activation_sparsity_scale"


def gemma3n(meta: Metadata) -> Config:
    """Gemma 3n; the file states the cut of the gates in deviations, config.json the share that lies below it."""
    found = decoder(meta) | rope(meta)
    del found["hidden_act"]
    cuts = meta.numbers(_SPARSITY)
    return (
        found
        | window_types(meta, meta.integer("attention.sliding_window"), every=PATTERN)
        | given(
            model_type="gemma3n_text",
            hidden_activation="gelu_pytorch_tanh",
            intermediate_size=meta.per_layer("feed_forward_length") or None,
            rope_local_base_freq=meta.number("rope.freq_base_swa") or LOCAL_THETA,
            final_logit_softcapping=meta.number("final_logit_softcapping") or LOGITS_CAP,
            altup_active_idx=meta.integer("altup.active_idx"),
            altup_num_inputs=meta.integer("altup.num_inputs"),
            hidden_size_per_layer_input=meta.integer("embedding_length_per_layer_input"),
            num_kv_shared_layers=meta.integer("attention.shared_kv_layers"),
            activation_sparsity_pattern=[shortest(NormalDist().cdf(cut)) for cut in cuts] or None,
        )
    )
