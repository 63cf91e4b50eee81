"""The memory tab's numbers: what an address asks for goes to the workers, and what is wrong with it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from inference.errors import Unavailable
from models_registry import live, services
from models_registry.memory_tab import MAX_SEQUENCES, _stops
from models_registry.models import Checkpoint
from tests.models_registry.test_fit_words import FIT, MIB

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int] | None]:
    """The sizes that the workers were asked for."""
    found: list[tuple[int, int] | None] = []

    def fit(checkpoint: Checkpoint, sizes: tuple[int, int] | None = None) -> dict:
        found.append(sizes)
        return {"workers": [FIT]}

    monkeypatch.setattr(live, "fit", fit)
    return found


@pytest.fixture
def address(hybrid: Path) -> str:
    return f"/models/{services.checkpoint_register(path=hybrid).pk}/?tab=memory"


def test_the_fields_begin_with_what_a_load_would_take(browser: Client, address: str, asked: list) -> None:
    text = browser.get(address).content.decode()
    assert asked == [None]
    assert 'name="tokens" type="number" min="1" max="128" value="2048"' in text
    assert 'value="128"' in text and "257.0 MiB weights + 5.0 GiB reserved states" in text


def test_the_workers_plan_what_the_address_asks_for(browser: Client, address: str, asked: list) -> None:
    text = browser.get(f"{address}&sequences=3&tokens=100").content.decode()
    assert asked == [(100, 3)]
    assert 'value="100"' in text and 'value="3"' in text


def test_the_region_comes_alone(browser: Client, address: str, asked: list) -> None:
    response = browser.get(f"{address}&sequences=3&tokens=100", headers={"HX-Target": "fit-region"})
    text = response.content.decode()
    assert text.startswith('<div id="fit-region"') and "Fits with" in text and asked == [(100, 3)]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sequences=0&tokens=8", f"isn&#x27;t a whole number from 1 to {MAX_SEQUENCES:,}."),
        ("sequences=2&tokens=129", "Tokens of each sequence: &#x27;129&#x27; isn&#x27;t a whole number from 1 to 128."),
        ("sequences=&tokens=8", "Sequences at once: &#x27;&#x27; isn"),
        ("sequences=%3Cb%3E&tokens=8", "&lt;b&gt;"),
    ],
)
def test_numbers_out_of_range_are_said(browser: Client, address: str, asked: list, query: str, words: str) -> None:
    text = browser.get(f"{address}&{query}").content.decode()
    assert words in text and asked == []


def test_workers_that_cannot_be_asked_say_why(browser: Client, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(checkpoint: Checkpoint, sizes: object = None) -> dict:
        raise Unavailable("No worker is running.")

    monkeypatch.setattr(live, "fit", fit)
    assert "No worker is running." in browser.get(address).content.decode()


def test_a_model_that_is_not_available_is_not_planned(browser: Client, address: str, asked: list) -> None:
    Checkpoint.objects.update(state=Checkpoint.State.MISSING)
    response = browser.get(f"{address}&sequences=3&tokens=100", headers={"HX-Target": "fit-region"})
    text = response.content.decode()
    assert "The model is missing; only an available one can be planned." in text and asked == []


def test_what_is_missing_stands_on_the_page(browser: Client, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {
        **FIT, "verdict": "too_large", "missing_bytes": 400 * MIB, "requested_num_seqs": 64, "requested_model_len": 100,
        "fitting_num_seqs": 40, "fitting_model_len": 96,
    }  # fmt: skip
    monkeypatch.setattr(live, "fit", lambda checkpoint, sizes: {"workers": [short]})
    text = browser.get(f"{address}&sequences=64&tokens=100").content.decode()
    assert "Does not fit by 400.0 MiB." in text and "Try at most 40 sequences of 100 tokens" in text


def test_stops_of_a_slider_reach_both_ends() -> None:
    assert _stops(1) == [1]
    assert _stops(100) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100]
    assert _stops(4096)[-2:] == [3072, 4096]
