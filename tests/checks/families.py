"""The table of families: ``python -m tests.checks.families`` writes docs/families.md.

Its rows are those of the registry, and llama.cpp's architectures that are read. The decoders that transformers knows
and that aren't among them are listed with the reason, as those that llama.cpp does; a test finds those that are in
neither list.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from inference.modelling.families.registry import FAMILIES, REFUSED
from inference.modelling.gguf.architectures import ARCHITECTURES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
HEAD = """# Families

A checkpoint's `model_type` (config.json) says how its tensors are computed. These types are read; each is
tested against transformers: whole forward pass, prefill in chunks, decode step by step, mixed batches. A type
that isn't here is refused by name, with the nearest one that is and the option that forces it.
`python -m tests.checks.families` writes this page; [add a family](add-a-family.md) says how it grows.

| `model_type` | What it is |
|---|---|
"""
HEADS = """
## Heads for multi-token prediction

Some checkpoints hold a head that predicts one more token (DeepSeek-V3's report, section 2.2). It is read
for `deepseek_v3`, `glm4_moe`, `glm4_moe_lite`, `nemotron_h`, `qwen3_next`, `qwen3_5` and `qwen3_5_moe`
(`num_nextn_predict_layers`, `mtp.*`), from safetensors and from GGUF files that have it. It is loaded only
with `--speculative mtp`, and drafts tokens then
([decision 63](decisions/0063-heads-draft-for-their-models.md)); else its tensors stay in the files. Of
several heads the first one is read. A head that is not whole is left out with a warning of the inspection.
Heads of other families are left out.
"""
IMAGES = """
## Images

The part that sees is read for `phi3_v` and `gemma3`; [images](vision.md) says how they are sent. Of other
families that see or hear the text model is read, and the rest stays in the files.
"""
LEFT = """
## Not read

Text decoders that transformers 5.23 has and blazr doesn't, and what they need.

| `model_type` | Needs |
|---|---|
"""
SEEING = """
Of the models that transformers 5.23 reads pictures and text with, these aren't read for text either:

| `model_type` | Why |
|---|---|
"""
SEEING_NOT_READ: Mapping[str, str] = {
    **REFUSED,
    "pi0": "actions of a robot, not text",
    "blip, blip-2, instructblip, instructblipvideo, git, evolla": "a prompt begins with a picture (or a protein)",
    "florence2, kosmos-2, kosmos-2.5, pix2struct, pp_formulanet, t5gemma2, udop, vision-encoder-decoder":
        "encoders with a decoder that attends to them, or decoders trained for one task on pictures",
    "idefics": "layers between that attend to pictures, for which text alone isn't defined",
    "shieldgemma2": "a classifier; its layers are Gemma 3's",
    "diffusion_gemma": "another loop: it writes blocks of tokens at once, in several passes",
    "chameleon, emu3": "pictures are tokens of the vocabulary, whose logits are masked",
    "cosmos3_edge, cosmos3_omni": "names of their own for Nemotron's and Qwen3-VL's layers, beside a generator",
    "unlimited_ocr": "attention to the whole prompt and, of the output, to a sliding window",
}  # fmt: skip
"""Types of transformers' models of pictures and text, separated by commas, to why they aren't read for text."""
NOT_READ: Mapping[str, str] = {
    "blt, ctrl, cpmant, doge, emu3, hrm_text, reformer, xlnet": "a layer of its own each; rarely served",
    "gpt_neox_japanese": "an early layout whose tokeniser is code of its own; rarely served",
    "gemma4_assistant, gemma4_unified_assistant": "models that only draft for another one",
    "gpt-sw3": "nothing: its published files say `gpt2`, which is read",
}  # fmt: skip
"""Types, separated by commas, to what is missing."""
_NO_DECODERS = """
bart beam bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert data2vec-text
electra ernie git marian mbart megatron-bert modernbert-decoder moshi moss_transcribe_diarize
musicgen musicgen_melody mvp pegasus phi4_multimodal plbart prophetnet rembert roberta roberta-prelayernorm roc_bert
roformer trocr whisper xlm xlm-roberta xlm-roberta-xl xmod
"""
NO_DECODERS = frozenset(_NO_DECODERS.split())
"""Encoders, halves of encoder-decoders, parts of models of pictures, sound or music, among transformers' causal LMs."""


GGUF_NOT_READ: Mapping[str, str] = {
    "bitnet": "the activation: llama.cpp has SiLU, the published model a squared ReLU, and no file says which",
    "qwen4exp": "constants of its hashes, which stand in keys; read as `qwen4_exp` from safetensors",
    "mistral4": "latent attention with queries scaled by position: not from GGUF (nor `deepseek2` of Mistral Large 3)",
    "deepseek, deepseek2-ocr": "the first DeepSeek's experts beside Llama's attention: scores that aren't divided",
    "refact, jais": "ALiBi beside an MLP with a gate; so do Baichuan's 13B models, which are refused by their layers",
    "rwkv6, rwkv6qwen2, rwkv7, arwkv7": "RWKV's later layers",
    "dream, llada, llada-moe, rnd1": "another loop: they write all tokens at once, in several passes",
    "arctic, chameleon, cogvlm, deci, graniteswitch, grok, grovemoe, hrm_text, "
    "kimi-k3, maple, nanbeige, openelm, plamo, plamo2, plamo3, plm, smallthinker, spark2_5, "
    "talkie": "families that blazr doesn't have",
    "deepseek4, dots3note, glm5-next, muse-glimmer, step35": "names of keys and tensors; read from safetensors",
    "gptj": "nothing: llama.cpp knows the name alone",
}
"""Architectures of llama.cpp that write text, separated by commas, to what is missing."""
_GGUF_OTHERS = """
bert clip dflash eagle3 eurobert gemma-embedding gemma4-assistant jina-bert-v2 jina-bert-v3 llama-embed modern-bert
neo-bert nomic-bert nomic-bert-moe pockettts qwen3tts t5 t5encoder wavtokenizer-dec
"""
GGUF_OTHERS = frozenset(_GGUF_OTHERS.split())
"""Encoders, parts of other models, and those of speech, among llama.cpp's architectures."""
GGUF = """
## GGUF

{count} of llama.cpp's architectures are read (`general.architecture`), each as a family above; for text alone
where the model also sees or hears:

{names}

llama.cpp has none for `longcat_flash`, `axk1`, `axk2` and others of the first table. Of its own these are not
read, nor what writes no text:

| Architecture | Needs |
|---|---|
"""


def not_read() -> Iterator[str]:
    """The types of ``NOT_READ``, one by one."""
    for names in NOT_READ:
        yield from names.split(", ")


def seeing_not_read() -> Iterator[str]:
    """The types of ``SEEING_NOT_READ``, one by one."""
    for names in SEEING_NOT_READ:
        yield from names.split(", ")


def gguf_not_read() -> Iterator[str]:
    """The architectures of ``GGUF_NOT_READ``, one by one."""
    for names in GGUF_NOT_READ:
        yield from names.split(", ")


def page() -> str:
    """docs/families.md."""
    by_module: dict[str, list[str]] = {}
    for model_type, family in sorted(FAMILIES.items()):
        by_module.setdefault(family.module, []).append(model_type)
    rows = []
    for module, types in sorted(by_module.items(), key=lambda item: item[1]):
        summary = (import_module(f"inference.modelling.families.{module}").__doc__ or "").splitlines()[0]
        rows.append(f"| `{'`, `'.join(types)}` | {summary.rstrip('.').replace('``', '`')} |\n")
    return HEAD + "".join(rows) + HEADS + IMAGES + _gguf() + LEFT + _needs(NOT_READ) + SEEING + _needs(SEEING_NOT_READ)


def _gguf() -> str:
    """The part about GGUF."""
    names = textwrap.fill(", ".join(f"`{name}`" for name in sorted(ARCHITECTURES)), 110, break_on_hyphens=False)
    return GGUF.format(count=len(ARCHITECTURES), names=f"{names}.") + _needs(GGUF_NOT_READ)


def _needs(left: Mapping[str, str]) -> str:
    """Rows of names and what they need."""
    return "".join(
        f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {need} |\n" for names, need in left.items()
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.name}: {len(FAMILIES)} types\n")
