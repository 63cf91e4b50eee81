"""Define namespaces: prefixes of different namespaces share no state, even with the same tokens."""

from __future__ import annotations

from inference.engine.prefix_cache.tree import root_digest
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import RopeSpec


class Namespaces:
    """Namespaces of one model.

    Two sequences can share state only if their salts and LoRA adapters agree, if they go on from the same saved state
    or from none, and if their tokens get the same rotations. Some RoPE scalings depend on the length
    (``ForwardBatch.rope_lengths``): the maximum of the prompt's length and the row's position + 1. LongRoPE has one
    set of frequencies within the trained context and one beyond. Dynamic NTK has different frequencies for each length
    beyond it. So prompts within the trained context share state; longer prompts share all of it with LongRoPE, and
    with dynamic NTK only if their lengths are equal.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._ropes: list[RopeSpec] = []
        for mixer in (mixer for layer in spec.layers for mixer in layer.token_mixers):
            rope = mixer.rope if isinstance(mixer, AttentionSpec | MLASpec) else None
            if rope is not None and rope.depends_on_length and rope not in self._ropes:
                self._ropes.append(rope)

    def digest(self, cache_salt: str, num_prompt_tokens: int, *, origin: str = "", adapter: str = "") -> bytes:
        """Return the digest of the root of a request's prefixes.

        Args:
            origin: Digest of the saved state that the request goes on from. What somebody's file holds never reaches
                requests that don't name the file.
            adapter: Digest of the LoRA adapter that the request goes through; states of two adapters never mix.
        """
        regimes = "/".join(str(part) for part in self.regimes(num_prompt_tokens))
        return root_digest(f"{regimes}{origin and f'@{origin}'}{adapter and f'+{adapter}'}\0{cache_salt}")

    def regimes(self, num_prompt_tokens: int) -> tuple[int, ...]:
        """Return numbers that differ between prompts of which one rotates the same tokens otherwise."""
        return tuple(_regime(rope, num_prompt_tokens) for rope in self._ropes)


def _regime(rope: RopeSpec, num_prompt_tokens: int) -> int:
    """Return a number that differs where rotations differ; 0 for prompts within the trained context."""
    assert rope.scaling is not None
    if rope.scaling.kind == "longrope":
        return int(num_prompt_tokens > rope.scaling.original_max_position_embeddings)
    return num_prompt_tokens if num_prompt_tokens > rope.max_position_embeddings else 0
