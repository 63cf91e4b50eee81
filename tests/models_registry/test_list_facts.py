"""What the list of models reads of the inspections, and how often."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from models_registry import list_facts, selectors, services
from models_registry.models import Checkpoint

pytestmark = pytest.mark.django_db


def copies(row: Checkpoint, number: int) -> None:
    """Make rows with the inspection of this one."""
    for index in range(number):
        row.pk = uuid.uuid4()
        row.served_model_name, row.path = f"copy-{index}", f"/nowhere/{index}"
        row.save(force_insert=True)


def test_inspections_are_read_once_and_again_when_they_change(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    key = row.pk
    copies(row, 5)
    rows = list(selectors.checkpoint_list())
    with CaptureQueriesContext(connection) as queries:
        facts = list_facts.list_facts(rows)
    assert len(queries) == 1 and set(facts) == {row.pk for row in rows}
    assert {found.ribbon.words for found in facts.values()} == {"3 layers: 1 mamba2, 1 mla+moe, 1 attention+mlp"}
    with CaptureQueriesContext(connection) as queries:
        assert list_facts.list_facts(rows) == facts
    assert len(queries) == 0

    changed = Checkpoint.objects.get(pk=key)
    changed.inspection["spec"]["layers"] = changed.inspection["spec"]["layers"][:1]
    changed.inspection["facts"].append({"name": "quantisation", "value": "Q4_K 100 %"})
    changed.save()
    with CaptureQueriesContext(connection) as queries:
        facts = list_facts.list_facts(list(selectors.checkpoint_list()))
    assert len(queries) == 2
    assert (facts[key].ribbon.words, facts[key].quantisation) == ("1 layer: 1 mamba2", "Q4_K 100 %")


@pytest.mark.parametrize("stored", [{}, {"spec": 7}, {"spec": {"layers": [{"_": "Unknown"}]}, "facts": [1, {}]}])
def test_a_damaged_inspection_says_nothing(hybrid: Path, stored: dict) -> None:
    row = services.checkpoint_register(path=hybrid)
    Checkpoint.objects.filter(pk=row.pk).update(inspection={"tokenizer": {}, **stored})
    facts = list_facts.list_facts(list(selectors.checkpoint_list()))
    assert facts[row.pk] == list_facts.NOTHING
