"""Searching tensors."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from inference.errors import UnknownModel
from models_registry import services
from models_registry.models import Checkpoint
from models_registry.tensor_index import layer_sizes, layers_of_tensors, tensor_detail, tensor_groups, tensor_page

pytestmark = pytest.mark.django_db


def test_names_dtypes_and_shapes_are_searched_in_the_order_of_layers(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    everything = tensor_page(row.pk, "", offset=0, limit=5)
    assert everything.count > 10 and len(everything.rows) == 5
    assert tensor_page(row.pk, "layers.1 ROUTER", offset=0, limit=5).count == 1
    shape = everything.rows[0]["shape"]
    text = "×".join(map(str, shape))
    assert any(found["shape"] == shape for found in tensor_page(row.pk, text, offset=0, limit=500).rows)
    assert tensor_page(row.pk, "no such thing", offset=0, limit=5).rows == []
    with pytest.raises(UnknownModel):
        tensor_page(uuid.uuid4(), "", offset=0, limit=5)


def test_layers_are_in_their_own_order_and_changes_are_seen(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    stored = Checkpoint.objects.get()
    tensors = stored.inspection["tensors"]
    tensors += [[f"extra.{number}.weight", *tensors[0][1:]] for number in (10, 2)]
    stored.save()
    found = tensor_page(row.pk, "extra", offset=0, limit=5)
    assert [item["name"] for item in found.rows] == ["extra.2.weight", "extra.10.weight"]


def test_thousands_are_searched_in_milliseconds(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    stored = Checkpoint.objects.get()
    tensors = stored.inspection["tensors"]
    tensors += [[f"layers.{n // 57}.experts.{n % 57}", *tensors[0][1:]] for n in range(5700)]
    stored.save()
    tensor_page(row.pk, "", offset=0, limit=50)
    took_s = []
    for _ in range(5):
        started = time.thread_time()
        assert tensor_page(row.pk, "layers.7. experts", offset=0, limit=50).count == 57
        took_s.append(time.thread_time() - started)
    assert min(took_s) < 0.05


def test_layers_and_groups(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    layers = layers_of_tensors(row.pk)
    page = tensor_page(row.pk, "", offset=0, limit=500, layer=1)
    assert {item["name"] for item in page.rows} == {name for name, layer in layers.items() if layer == 1}
    assert page.size_bytes == layer_sizes(row.pk)[1] == sum(item["size_bytes"] for item in page.rows)
    assert tensor_page(row.pk, "", offset=0, limit=5, layer=7).count == 0
    groups = tensor_groups(row.pk)
    for group in groups:
        assert tensor_page(row.pk, "", offset=0, limit=500, prefix=group.prefix).count == group.count
    (deep,) = [group for group in groups if "layers" in group.prefix]
    assert len(tensor_groups(row.pk, deep.prefix)) == 3
    assert tensor_groups(row.pk, "nothing") == []


def test_a_tensor_says_what_it_becomes(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    name = tensor_page(row.pk, "router", offset=0, limit=1).rows[0]["name"]
    detail = tensor_detail(row.pk, name)
    assert detail is not None and detail.parameters[0].startswith("layers.1.") and detail.codes_of == ""
    assert detail.size_bytes == detail.info.end - detail.info.begin
    assert tensor_detail(row.pk, "nothing") is None
