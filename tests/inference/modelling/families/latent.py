"""Layers of latent attention as names and shapes: two heads, latents of 6 (queries) and 5, widths 4 + 2 and 3."""

from __future__ import annotations

from tests.inference.modelling.families.headers import HIDDEN, Shapes, experts, mlp, norms, outer

QUERY, LATENT = 6, 5


def indexer(base: str) -> Shapes:
    """What chooses the keys, under ``base``: three heads of 8."""
    return {
        f"{base}indexer.wq_b.weight": (24, QUERY),
        f"{base}indexer.wk.weight": (8, HIDDEN),
        f"{base}indexer.k_norm.weight": (8,),
        f"{base}indexer.k_norm.bias": (8,),
        f"{base}indexer.weights_proj.weight": (3, HIDDEN),
    }


def layers(count: int, *, dense: int = 1, indexed: tuple[int, ...] = (), gates: bool = False) -> Shapes:
    """A model of such layers, the first ``dense`` without experts; ``gates``: queries of A.X-K2."""
    found = outer()
    for number in range(count):
        layer = f"model.layers.{number}."
        base = f"{layer}self_attn."
        found |= norms(layer) | {
            f"{base}q_a_proj.weight": (QUERY, HIDDEN),
            f"{base}q_a_layernorm.weight": (QUERY,),
            f"{base}q_b_proj.weight": (18, 2 * QUERY) if gates else (12, QUERY),
            f"{base}kv_a_proj_with_mqa.weight": (LATENT + 2, HIDDEN),
            f"{base}kv_a_layernorm.weight": (LATENT,),
            f"{base}kv_b_proj.weight": (14, LATENT),
            f"{base}o_proj.weight": (HIDDEN, 6),
        }
        if number in indexed:
            found |= indexer(base)
        if number < dense:
            found |= mlp(f"{layer}mlp.")
            continue
        found |= mlp(f"{layer}mlp.shared_experts.", 8) | experts(f"{layer}mlp.experts.")
        found |= {f"{layer}mlp.gate.weight": (4, HIDDEN), f"{layer}mlp.gate.e_score_correction_bias": (4,)}
    return found
