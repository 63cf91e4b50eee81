"""Record what a ggjt file leaves open: widths that follow from shapes, and defaults that a person may have to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.modelling.families.config import Confidence, Fact, Facts
from inference.modelling.gguf.container import GgufFile

DEFAULT_FACTS = ("max_position_embeddings", "norm.eps", "rope.theta")
LLAMA_2_70B_FACTOR = 1.3
"""Of the MLP's width; all other models have 1."""


def record_ggjt(file: GgufFile, facts: Facts) -> None:
    """Record facts and warnings about a file; families record its sizes."""
    keys = file.keys
    width, multiple = _number(keys.get("llama.embedding_length")), _number(keys.get("ggjt.n_mult"))
    kept, stored = keys.get("llama.attention.head_count_kv"), keys.get("llama.feed_forward_length")
    if kept is not None:
        evidence = "the file doesn't state it; rows of layers.0.attention.wk by the width of a head"
        facts.add("ggjt.n_head_kv", kept, evidence, Confidence.HIGH)
    if stored is not None:
        expected = [mlp_width(width, multiple, factor) for factor in (1.0, LLAMA_2_70B_FACTOR)]
        is_expected = stored in expected
        facts.add(
            "ggjt.n_ff",
            stored,
            f"rows of layers.0.feed_forward.w1; n_embd {width} and n_mult {multiple} make {expected[0]}",
            Confidence.CERTAIN if is_expected else Confidence.MEDIUM,
        )
        if not is_expected:
            facts.warn(
                f"the MLP has {stored} rows, but by n_embd {width} and n_mult {multiple} it would have {expected[0]} "
                f"(or {expected[1]}, as Llama 2 70B); the shape is used."
            )
    facts.warn(
        "a ggjt file states neither the context nor eps nor the rope's base; llama.cpp's defaults for such files are "
        "used: 2048 tokens, 5e-6 and 10000. For Llama 2 set max_position_embeddings to 4096 and norm.eps to 1e-5; for "
        "others see their config.json."
    )


def without_stated_defaults(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts, those of a ggjt file with what they rest on: families take its defaults for stated."""
    if not any(fact.name == "file_format" and fact.value == "ggjt" for fact in facts):
        return tuple(facts)
    return tuple(
        replace(fact, evidence="a ggjt file doesn't state it; llama.cpp's default", confidence=Confidence.LOW)
        if fact.name in DEFAULT_FACTS and fact.confidence is not Confidence.OVERRIDE
        else fact
        for fact in facts
    )


def mlp_width(width: int, multiple: int, factor: float) -> int:
    """Width of the MLP by the rule of Llama's authors: two thirds of four widths, up to a multiple."""
    raw = int(factor * (2 * (4 * width) // 3))
    return -(-raw // max(multiple, 1)) * max(multiple, 1)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
