"""The page of a model and its tabs."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from inference.errors import InvalidRequest
from models_registry import services
from models_registry.model_page import TABS
from models_registry.models import Checkpoint
from tests.accounts import account

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_settings_are_there_for_who_may_change_them(client: Client, hybrid: Path, role: str) -> None:
    row = services.checkpoint_register(path=hybrid)
    client.force_login(account("nina", role))
    text = client.get(f"/models/{row.pk}/?tab=settings").content.decode()
    assert 'href="?tab=settings"' not in text and 'href="?tab=overview" aria-current="page"' in text
    assert "tab=settings" not in client.get(f"/models/{row.pk}/usage/").content.decode()


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_marks_itself_and_reads_what_it_shows(browser: Client, hybrid: Path, tab: str) -> None:
    row = services.checkpoint_register(path=hybrid)
    text = browser.get(f"/models/{row.pk}/?tab={tab}").content.decode()
    assert f'href="?tab={tab}" aria-current="page"' in text
    assert " style=" not in text


def test_states_name_the_type_that_they_are_counted_in(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    text = browser.get(f"/models/{row.pk}/").content.decode()
    token, sequence = (text.split(f"<dt>State per {what}</dt>")[1].split("</dd>")[0] for what in ("token", "sequence"))
    assert token.endswith(f'<span class="small muted">in {row.dtype}</span>')
    assert sequence.endswith('<span class="small muted">in float32</span>')


def test_an_unknown_tab_is_the_first_one(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    assert 'href="?tab=overview" aria-current="page"' in browser.get(f"/models/{row.pk}/?tab=x").content.decode()


def test_the_search_of_tensors_gets_its_rows_alone(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    response = browser.get(f"/models/{row.pk}/?tab=tensors&q=router", headers={"HX-Target": "tensor-region"})
    text = response.content.decode()
    assert text.startswith('<div id="tensor-region" ') and "1 to 1 of 1" in text


def test_the_type_of_states_is_chosen_on_the_settings_tab(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_settings_update(checkpoint=row, values={"state_dtype": "bfloat16"})
    text = browser.get(f"/models/{row.pk}/?tab=settings").content.decode()
    field = text[text.index('id="setting-state_dtype"') : text.index('id="hint-state_dtype"')]
    assert "<option>float32</option><option selected>bfloat16</option>" in field
    with pytest.raises(InvalidRequest, match="state_dtype is 'int8'; it must be one of auto, float32, bfloat16"):
        services.checkpoint_settings_update(checkpoint=row, values={"state_dtype": "int8"})


def test_the_settings_know_whose_files_a_deletion_would_remove(
    browser: Client, hybrid: Path, storage_dirs: Path
) -> None:
    row = services.checkpoint_register(path=hybrid)
    address = f"/models/{row.pk}/?tab=settings"
    assert '"owns_files": false' in browser.get(address).content.decode()
    Checkpoint.objects.update(directory=str(storage_dirs / "checkpoints" / str(row.pk) / "copy"))  # it was promoted
    assert '"owns_files": true' in browser.get(address).content.decode()
