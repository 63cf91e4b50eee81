"""Headers of layers with experts, for tests."""

from __future__ import annotations

from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, attention, mlp

EXPERT = 10
"""Width of an expert."""


def expert_layers(kinds: str, *, norms: tuple[str, ...], router: str = "mlp.gate", shared: int = 1) -> Shapes:
    """A model with a dense MLP (``d``) or three experts (``e``) in each layer, of four heads of four values.

    Args:
        kinds: Letters of the layers.
        norms: Names of a layer's norms.
        router: Name of what chooses the experts.
        shared: Shared experts, together under ``mlp.shared_experts.``.
    """
    found: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for number, kind in enumerate(kinds):
        base = f"model.layers.{number}."
        found |= attention(f"{base}self_attn.")
        found |= {f"{base}{norm}.weight": (HIDDEN,) for norm in norms}
        if kind == "d":
            found |= mlp(f"{base}mlp.")
            continue
        found |= {f"{base}{router}.weight": (3, HIDDEN)}
        found |= mlp(f"{base}mlp.shared_experts.", shared * EXPERT) if shared else {}
        for expert in range(3):
            found |= mlp(f"{base}mlp.experts.{expert}.", EXPERT)
    return found
