"""What a revision of an alias meant, by its own columns."""

from __future__ import annotations

import pytest

from models_registry.alias_models import AliasRevision

KEY = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("values", "meaning", "is_available"),
    [
        ({"checkpoint_id": KEY}, "base", True),
        ({}, "base", False),
        ({"checkpoint_id": KEY, "adapter_name": "sql", "adapter_id": KEY}, "base:sql", True),
        ({"checkpoint_id": KEY, "adapter_name": "sql"}, "base:sql", False),
    ],
)
def test_a_revision_says_what_it_meant(values: dict[str, str], meaning: str, is_available: bool) -> None:
    revision = AliasRevision(alias_id=1, number=2, checkpoint_name="base", **values)
    assert (revision.meaning, revision.is_available, str(revision)) == (meaning, is_available, "1@2")
