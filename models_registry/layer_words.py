"""The kinds of layers in words, and what the map of a model's layers shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.host.units import format_bytes, format_count

WORDS = {
    "attention": "attention (GQA)",
    "mla": "latent attention (MLA)",
    "mamba1": "Mamba-1",
    "mamba2": "Mamba-2",
    "mamba3": "Mamba-3",
    "gated_delta": "gated delta rule",
    "kimi_delta": "delta rule with a decay per channel",
    "lightning": "linear attention",
    "mlstm": "mLSTM",
    "rg_lru": "gated linear recurrence (RG-LRU)",
    "short_conv": "short convolution",
    "time_mix": "RWKV time mixing",
    "channel_mix": "RWKV channel mixing",
    "parallel": "mixers side by side",
    "mlp": "MLP",
    "moe": "mixture of experts",
}
"""The names of ``LayerSpec``'s mixers as people call them; app.css has a colour for each (``k-NAME``)."""
STRIPED = frozenset({"mamba1", "kimi_delta", "mlstm", "rg_lru", "channel_mix", "moe"})
"""Kinds that are drawn in stripes: each shares its colour with another kind, or stands beside one of little contrast.
app.css has the same list."""


def layer_rows(layers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers of a description (``detection.describe``) with a title and their sizes in words."""
    rows = []
    for layer in layers:
        kinds = [kind for kind in (layer["token_mixer"], layer["channel_mixer"]) if kind]
        sizes = [*layer["sizes"].items(), ("parameters", format_count(layer["num_parameters"]))]
        for name, words in (
            ("state_bytes_per_token", "state per token"),
            ("state_bytes_per_sequence", "state per sequence"),
        ):
            if layer[name]:
                sizes.append((words, format_bytes(layer[name])))
        title = f"Layer {layer['number']}: {' + '.join(WORDS.get(kind, kind) for kind in kinds)}"
        rows.append({**layer, "title": title, "pairs": [(name, str(value)) for name, value in sizes]})
    return rows


def legend(layers: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Return each kind of the layers with its words and its number of layers; token mixers first."""
    found = list(layers)
    kinds = [layer["token_mixer"] for layer in found] + [layer["channel_mixer"] for layer in found]
    return [
        (kind, WORDS.get(kind, kind), sum(kind in (layer["token_mixer"], layer["channel_mixer"]) for layer in found))
        for kind in dict.fromkeys(kinds)
        if kind
    ]
