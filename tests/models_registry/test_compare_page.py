"""The page that compares two checkpoints."""

from __future__ import annotations

import shutil

import pytest
from django.test import Client

from models_registry.models import Checkpoint

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


def test_the_page(browser: Client, two_dtypes: tuple[Checkpoint, Checkpoint]) -> None:
    one, other = two_dtypes
    text = browser.get(f"/models/compare/?a={one.pk}&b={other.pk}").content.decode()
    assert "differ" in text and "F16 " in text and HOSTILE not in text and "&lt;script&gt;" in text
    assert " style=" not in text
    assert f'/models/{other.pk}/?tab=revisions&amp;from={one.pk}"' in text
    assert all(f'/models/{row.pk}/?tab=passport"' in text for row in two_dtypes)
    assert "tab=revisions" not in browser.get(f"/models/compare/?a={one.pk}&b={one.pk}").content.decode()
    assert browser.get(f"/models/compare/?pick={one.pk}&pick={other.pk}").content.decode().count("F16 ") > 1
    half = browser.get(f"/models/compare/?pick={one.pk}").content.decode()
    assert "Choose two models" in half and f'value="{one.pk}" selected' in half
    assert browser.get("/models/compare/?a=x&b=y").status_code == 404
    ticks = browser.get("/models/").content.decode()
    assert ticks.count('name="pick"') == 2 and "Compare two" in ticks


def test_a_model_without_its_files_is_compared_by_its_row(
    browser: Client, two_dtypes: tuple[Checkpoint, Checkpoint]
) -> None:
    one, other = two_dtypes
    shutil.rmtree(other.directory)
    assert browser.get(f"/models/compare/?a={one.pk}&b={other.pk}").status_code == 200
