"""Names of published files to those in memory, and back in the sources."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.llama import build_spec
from inference.modelling.families.stored_names import names_in_memory, with_stored_names
from tests.inference.modelling.families.headers import llama, view_of

RULES = ((r"^layers\.", "model.layers."), (r"\.wq\.", ".q_proj."))
CONFIG = {"model_type": "llama", "num_attention_heads": 4}


def test_sources_name_the_tensors_of_the_files() -> None:
    ours = llama(2)
    stored = {name.replace("model.layers.", "layers.").replace("q_proj", "wq"): shape for name, shape in ours.items()}
    view, names = names_in_memory(view_of(stored, CONFIG), RULES)
    assert set(view.tensors) == set(ours)
    spec = with_stored_names(build_spec(view), names)
    assert {name for source in spec.parameters.values() for name in source.tensor_names()} == set(stored)


def test_other_parts_keep_their_names() -> None:
    view, names = names_in_memory(view_of({"vision_tower.layers.0.wq.weight": (2, 2)}), RULES)
    assert list(view.tensors) == ["vision_tower.layers.0.wq.weight"] == list(names)


def test_one_tensor_under_two_names_is_refused() -> None:
    both = {"layers.0.wq.weight": (2, 2), "model.layers.0.q_proj.weight": (2, 2)}
    with pytest.raises(CorruptCheckpoint, match="under two names"):
        names_in_memory(view_of(both), RULES)
