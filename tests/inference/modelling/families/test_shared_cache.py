"""Which layers read the keys and values of an earlier one."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.shared_cache import kv_sources, unused_projections
from tests.inference.modelling.families.headers import llama, view_of

TYPES = ("sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention")


def test_the_last_layers_read_the_last_one_of_their_type() -> None:
    view = view_of(llama(5), {"num_kv_shared_layers": 3})
    assert kv_sources(view, TYPES, 0) == (None, None, 0, 1, 0)
    assert kv_sources(view_of(llama(5), {}), TYPES, 1) == (None, None, None, None, 2)


def test_a_type_without_a_layer_before_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="num_kv_shared_layers is 4 of 5, which leaves no full_attention"):
        kv_sources(view_of(llama(5), {"num_kv_shared_layers": 4}), TYPES, 0)


def test_only_their_keys_and_values_are_unused() -> None:
    layout = read_layout(view_of(llama(5), {}))
    unused = unused_projections(layout, (None, None, 0, 1, 0)).names
    assert unused.search("model.layers.4.self_attn.v_proj.weight")
    assert unused.search("model.layers.2.self_attn.k_norm.weight")
    assert not unused.search("model.layers.2.self_attn.q_proj.weight")
    assert not unused.search("model.layers.1.self_attn.k_proj.weight")
    assert not unused_projections(layout, (None,) * 5).names.search("model.layers.4.self_attn.v_proj.weight")
