"""Which layers go by the indexer of an earlier one."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.shared_choice import choice_sources, unused_indexers
from tests.inference.modelling.families.headers import llama, view_of


def sources(default: tuple[str, ...] = ("full",) * 4, **config: Any) -> tuple[int | None, ...]:
    view = view_of(llama(4), config)
    return choice_sources(view, read_layout(view), default)


def test_shared_layers_go_by_the_last_full_one() -> None:
    assert sources(indexer_types=["full", "shared", "full", "shared"]) == (None, 0, None, 2)
    assert sources(("full", "shared", "shared", "full")) == (None, 0, 0, None)
    assert sources(indexer_types=["full"] * 5) == (None,) * 4


@pytest.mark.parametrize("types", [["full"] * 3, ["shared", "full", "full", "full"], ["full", "full", "half", "full"]])
def test_what_can_not_be_is_refused(types: list[str]) -> None:
    with pytest.raises(
        CorruptCheckpoint, match="indexer_types needs 'full' or 'shared' for each of 4 layers"
    ) as caught:
        sources(indexer_types=types)
    assert caught.value.param == "indexer_types"


def test_only_the_indexers_of_shared_layers_are_unused() -> None:
    layout = read_layout(view_of(llama(4), {}))
    (unused,) = unused_indexers(layout, (None, 0, None, 2))
    assert unused.names.search("model.layers.3.self_attn.indexer.wk.weight")
    assert not unused.names.search("model.layers.2.self_attn.indexer.wk.weight")
    assert not unused.names.search("model.layers.3.self_attn.q_a_proj.weight")
    assert not unused_indexers(layout, (None,) * 4)[0].names.search("model.layers.3.self_attn.indexer.wk.weight")
