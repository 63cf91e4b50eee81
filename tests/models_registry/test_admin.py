"""The registry's admin pages: everything can be read, nothing can be changed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from models_registry import services
from models_registry.aliases import alias_promote
from models_registry.models import Adapter, Checkpoint, ModelAlias, Upload, UploadFile

pytestmark = pytest.mark.django_db


@pytest.fixture
def rows(hybrid: Path, staff: User) -> dict[str, object]:
    checkpoint = services.checkpoint_register(path=hybrid, overrides={"top_k": 1}, author=staff)
    upload = Upload.objects.create(served_model_name="big", size_bytes=5, active_at=timezone.now())
    UploadFile.objects.create(upload=upload, number=0, name="model.safetensors", size_bytes=5)
    alias_promote(name="chat", checkpoint=checkpoint)
    adapter = Adapter.objects.create(
        base=checkpoint, name="sql", path="/adapters/sql", digest="d", rank=4, num_values=1, size_bytes=1
    )
    found = {"checkpoint": checkpoint, "upload": upload, "modelalias": ModelAlias.objects.get()}
    return {**found, "adapter": adapter}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("checkpoint", ["tiny-hybrid", "top_k", "vera"]),
        ("upload", ["big", "model.safetensors"]),
        ("modelalias", ["chat", "tiny-hybrid"]),
        ("adapter", ["sql", "/adapters/sql"]),
    ],
)
def test_rows_can_be_read(admin_client: Client, rows, name, shown):
    listed = admin_client.get(f"/admin/models_registry/{name}/")
    assert listed.status_code == 200
    assert shown[0] in listed.content.decode()
    page = admin_client.get(f"/admin/models_registry/{name}/{rows[name].pk}/change/")
    assert page.status_code == 200
    for text in shown:
        assert text in page.content.decode()


@pytest.mark.parametrize("name", ["checkpoint", "upload", "modelalias", "adapter"])
def test_rows_are_made_by_the_services_only(admin_client: Client, rows, name):
    assert admin_client.get(f"/admin/models_registry/{name}/add/").status_code == 403


@pytest.mark.parametrize("name", ["checkpoint", "upload", "adapter"])
def test_rows_with_files_are_neither_changed_nor_deleted_there(admin_client: Client, rows, name):
    path = f"/admin/models_registry/{name}/{rows[name].pk}"
    assert admin_client.post(f"{path}/change/", {"served_model_name": "renamed"}).status_code == 403
    assert admin_client.post(f"{path}/delete/", {"post": "yes"}).status_code == 403
    assert Checkpoint.objects.get().served_model_name == "tiny-hybrid"


def test_lists_leave_the_large_columns_out(admin_client: Client, rows, django_assert_max_num_queries):
    with django_assert_max_num_queries(12):
        page = admin_client.get("/admin/models_registry/checkpoint/")
    assert "inspection" not in page.context["cl"].result_list[0].__dict__


def test_inspections_are_not_shown(admin_client: Client, rows):
    page = admin_client.get(f"/admin/models_registry/checkpoint/{rows['checkpoint'].pk}/change/")
    assert "field-inspection" not in page.content.decode()
    assert "field-file_stamps" not in page.content.decode()
