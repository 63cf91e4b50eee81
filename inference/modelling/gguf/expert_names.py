"""Tables of tensor names of newer decoders with experts.

As ``names.py``. Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.names import attention, both
from inference.modelling.gguf.tensors import Rename

GPT_OSS = (
    *attention(norms=None),
    Rename("attn_sinks.weight", "self_attn.sinks"),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    *both("ffn_gate_inp", "mlp.router"),
    Rename(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "mlp.experts.gate_up_proj.weight", "take_turns"),
    Rename(("ffn_gate_exps.bias", "ffn_up_exps.bias"), "mlp.experts.gate_up_proj_bias", "take_turns"),
    Rename("ffn_down_exps.weight", "mlp.experts.down_proj.weight"),
    Rename("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
)
