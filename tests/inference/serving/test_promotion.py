"""Aliases that mean what a served name means."""

from __future__ import annotations

import pytest

from inference.serving.promotion import revision_means, served_promote
from inference.serving.served_models import served_model_read
from models_registry.aliases import alias_revision
from tests.inference.rows import make_adapter, make_checkpoint

pytestmark = pytest.mark.django_db


def test_an_alias_means_the_checkpoint_or_the_adapter_that_was_named():
    adapter = make_adapter(make_checkpoint("base"), "sql")
    base, sql = served_model_read("base"), served_model_read("base:sql")
    served_promote(name="chat", served=sql, author_name="vera")
    assert revision_means(alias_revision("chat"), sql) and not revision_means(alias_revision("chat"), base)
    served_promote(name="chat", served=base, author_name="vera")
    assert revision_means(alias_revision("chat"), base) and not revision_means(None, base)
    adapter.delete()
    earlier = alias_revision("chat@1")
    assert not revision_means(earlier, base)  # not what is left of its meaning
