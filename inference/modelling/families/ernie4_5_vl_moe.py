"""ERNIE 4.5 that sees, its text model: ERNIE 4.5's layers, whose tokens of text have experts of their own.

Source: transformers' ``ernie4_5_vl_moe``, also for what config.json may leave out. The experts of pictures are
left out; the three positions of a token are equal for text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inference.errors import TensorShapeMismatch
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import QWEN_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Members, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.ernie4_5 import CONFIG_KEYS as DENSE_KEYS
from inference.modelling.families.ernie4_5 import CONTEXT, THETA
from inference.modelling.families.grouped_moe import shared_experts_width
from inference.modelling.families.head_sizes import with_default_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.moe_config import (
    check_experts,
    check_layer_kinds,
    check_routing,
    count_experts,
    moe_sources,
)
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.sources import Piece, Source

UNSTRETCHED = Only(("default",), "positions aren't stretched")
ROPE = Members({**QWEN_ROPE.rules, "rope_type": UNSTRETCHED, "type": UNSTRETCHED})
TEXT: Table = {
    **DENSE_KEYS["ernie4_5"],
    **used("moe_intermediate_size", "moe_k", "moe_num_experts", "moe_num_shared_experts", "mlp_layer_types"),
    **harmless("guards a division by nothing", "moe_norm_min"),
    "rope_parameters": ROPE,
    "rope_scaling": ROPE,
}
CONFIG_KEYS: Mapping[str, Table] = {"ernie4_5_vl_moe": around(TEXT)}

HEADS = 20
BIAS = "moe_statics.e_score_correction_bias"


def build_spec(view: CheckpointView) -> ModelSpec:
    view = with_default_heads(text_part(view), HEADS)
    widths = view.config.integers("moe_intermediate_size")
    if widths:  # of text, then of pictures
        view = view.changed(moe_intermediate_size=widths[0])
    decoder = AttentionDecoder.read(view, tied_by_default=True, default_max_position_embeddings=CONTEXT)
    is_apart = any(".mlp.text_moe." in name for name in view.tensors)
    router = "mlp.text_moe.gate" if is_apart else "mlp.gate"
    check_layer_kinds(view, decoder.layout, router=router)
    act = activation(view)
    return decoder.spec(
        "ernie4_5_moe",
        norm=rms_norm(view, default=1e-5),
        ropes=decoder.rope(interleaved=True, default_theta=THETA),
        act=act,
        experts=lambda layer: _experts(view, f"{layer}mlp.", act, is_apart=is_apart),
        router=f"{router}.weight",
        ignored=(_of_pictures(view),),
    )


def _experts(view: CheckpointView, base: str, act: str, *, is_apart: bool) -> ChannelMixer:
    """The experts of text under ``base``, and their sources.

    Args:
        is_apart: They have names of their own, as in transformers 5; else they are the first half of all, and the
            matrix of their router is stored in × out.
    """
    part = "text_moe." if is_apart else ""
    count, width = count_experts(view, f"{base}{part}experts.")
    count = count if is_apart else count // 2
    check_experts(view, f"{base}{part}experts.", count, width, ("moe_num_experts",), "moe_intermediate_size")
    spec = MoESpec(
        num_experts=count,
        top_k=integer_with_evidence(view, "moe.top_k", ("moe_k",), 6),
        intermediate_size=width,
        activation=act,
        correction_bias=True,
        shared_intermediate_size=shared_experts_width(view, base, width, "moe_num_shared_experts"),
    )
    bias = f"{part}gate.{BIAS}" if is_apart else BIAS
    sources = moe_sources(
        view,
        check_routing(spec),
        base,
        router=f"{part}gate",
        shared="shared_experts.",
        correction_bias=bias,
        experts=f"{part}experts.",
    )
    if not is_apart:
        sources["router.weight"] = Source((Piece(f"{base}gate.weight", transpose=True),))
        rows = matrix_shape(view.tensors, base + bias)[0]
        if rows != 2:
            raise TensorShapeMismatch(
                f"{base}{bias} has {rows} rows; it must have one for text and one for pictures.", param=base + bias
            )
        sources["router.correction_bias"] = Source((Piece(base + bias, rows=(0, 1), reshape=(count,)),))
    return spec, sources


def _of_pictures(view: CheckpointView) -> IgnoredTensors:
    """The experts of pictures: the second half of all, where they have no names of their own."""
    numbers = {int(match[1]) for name in view.tensors if (match := re.search(r"\.mlp\.experts\.(\d{1,6})\.", name))}
    second = _numbers_from(sorted(numbers)[len(numbers) // 2]) if numbers else "none"
    names = rf"\.mlp\.(vision_moe\.|gate\.weight_1$|experts\.(?:{second})\.)"
    return IgnoredTensors(re.compile(names), "experts of pictures, which aren't read")


def _numbers_from(least: int) -> str:
    """A pattern of the whole numbers from ``least`` on; short, as it is searched in every tensor's name."""
    digits = str(least)
    above = [
        rf"{digits[:place]}[{int(digit) + 1}-9]\d{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "9"
    ]
    return "|".join((digits, *above, rf"[1-9]\d{{{len(digits)},}}"))
