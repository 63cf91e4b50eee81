"""Checkpoints are found by name, alias or id; what people set comes with its history."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from inference.errors import UnknownModel
from models_registry import selectors, services
from models_registry.aliases import alias_promote
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


def test_a_name_is_a_checkpoints_own_before_it_is_an_alias():
    one, two = make_checkpoint("one"), make_checkpoint("two")
    alias_promote(name="chat", checkpoint=two)
    assert selectors.checkpoint_get_by_name("one") == one
    assert selectors.checkpoint_get_by_name("chat") == two
    assert selectors.checkpoint_get_by_name("chat@1") == two
    make_checkpoint("chat@1x")
    with pytest.raises(UnknownModel, match="'chat@2' does not exist"):
        selectors.checkpoint_get_by_name("chat@2")


def test_long_names_are_shortened_in_the_error():
    with pytest.raises(UnknownModel) as caught:
        selectors.checkpoint_get_by_name("x" * 10_000)
    assert len(caught.value.message) < 300
    assert caught.value.param == "model"


def test_ids_come_as_text_or_value():
    row = make_checkpoint("one")
    assert selectors.checkpoint_get(row.pk) == selectors.checkpoint_get(str(row.pk)) == row


def test_lists_are_sorted_by_name():
    for name in ("b", "C", "a"):
        make_checkpoint(name)
    names = [row.served_model_name for row in selectors.checkpoint_list()]
    assert sorted(names) == sorted(["a", "b", "C"])
    assert names.index("a") < names.index("b")


def test_overrides_in_force_are_those_that_were_not_cleared(hybrid: Path, staff: User, django_assert_num_queries):
    row = services.checkpoint_register(path=hybrid, overrides={"top_k": 1}, author=staff)
    assert selectors.overrides_in_force(row) == {"moe.top_k": 1}
    services.checkpoint_override_set(checkpoint=row, fact="top_k", value=2, author=staff)
    assert selectors.overrides_in_force(row) == {"moe.top_k": 2}
    with django_assert_num_queries(1):
        history = [
            (item.value, item.cleared_at is None, item.author.username) for item in selectors.override_history(row)
        ]
    assert history == [(2, True, "vera"), (1, False, "vera")]
    found = selectors.checkpoint_inspection(selectors.checkpoint_get(row.pk))
    assert len(found.spec.layers) == row.num_layers
