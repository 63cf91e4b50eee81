"""Names: every tensor that llama.cpp's converter can write for an architecture is known."""

from __future__ import annotations

import re

import pytest
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from inference.modelling.gguf.architectures import (
    _FALCON_TWO_NORMS,
    _MIXTRAL,
    _QWEN3_NEXT_AS_IT_WAS,
    ARCHITECTURES,
    CONFIG_TENSORS,
)
from tests.inference.modelling.gguf.converter import NAMED_AS

EXPERTS = {"ffn_gate_inp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps"}
UNREAD = {
    **{name: {"attn_rot_embd"} for name in (
        "llama", "starcoder2", "smollm3", "nemotron", "arcee", "llama4", "internlm2", "glm-dsa", "deepseek32",
        "hy_v4", "exaone", "baichuan", "qwen", "xverse", "orion",
    )},
    "codeshell": {"attn_rot_embd", "position_embd"},
    "minicpm": {"attn_rot_embd", *EXPERTS},
    "mistral3": {"attn_rot_embd", *EXPERTS},
    "deepseek2": {"attn_rot_embd", "attn_k", "attn_v"},
    "phi2": {"ffn_norm"},
    "mpt": {"attn_q_norm", "attn_k_norm", "position_embd", "ffn"},
    "apertus": {"attn_rot_embd", "ffn_gate"},
    "glm4": {f"nextn.{name}" for name in (
        "eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm"
    )},
    "lfm2": {"dense_2"},
    "bailingmoe3": {"ssm_f_b", "ssm_g_b"},
}  # fmt: skip
"""Rotary tables of the first files, names that the package lists but no model has, experts of a MiniCPM that the
converter doesn't know, the head of an embedding model, drafts of GLM-OCR, variants of MPT, and the second halves of
Kimi's gates, which Ling has whole."""


LEAF = re.compile(r"\.(weight|bias)$")
OTHER_FORMS = {"falcon": _FALCON_TWO_NORMS, "llama": _MIXTRAL, "qwen3next": _QWEN3_NEXT_AS_IT_WAS}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_packages_tensors_have_a_row(name):
    row = ARCHITECTURES[name]
    known = {LEAF.sub("", stored) for stored in (*row.outer, *CONFIG_TENSORS)}
    for rename in (*row.layers, *(OTHER_FORMS[name].layers if name in OTHER_FORMS else ())):
        known |= {
            LEAF.sub("", stored) for stored in ([rename.stored] if isinstance(rename.stored, str) else rename.stored)
        }
    arch = next(key for key, spelled in MODEL_ARCH_NAMES.items() if spelled == NAMED_AS.get(name, name))
    listed = {TENSOR_NAMES[kind].removeprefix("blk.{bid}.") for kind in MODEL_TENSORS[arch]}
    assert listed - known == UNREAD.get(name, set())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_name_has_two_rows(name):
    stored = [row.stored for row in ARCHITECTURES[name].layers]
    assert len(stored) == len(set(stored))
