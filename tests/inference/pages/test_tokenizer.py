"""The tokenizer's tab of a model's page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from django.test import Client

from models_registry import services
from models_registry.models import Checkpoint
from tests.accounts import account

pytestmark = pytest.mark.django_db
DEMO = Path(__file__).resolve().parents[3] / "inference" / "demo" / "checkpoint"
HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}\u202e"


@pytest.fixture
def operator(client: Client, settings) -> Client:
    settings.BLAZR_REDIS_URL = "unix:///nonexistent/redis.sock?db=0"
    client.force_login(account("edwin", "operator"))
    return client


@pytest.fixture
def demo(db) -> Checkpoint:
    return services.checkpoint_register(path=DEMO)


def test_the_tab_cuts_searches_and_names_unused_rows(operator: Client, demo: Checkpoint) -> None:
    text = operator.get(f"/models/{demo.pk}/tokenizer/?text=a+module&q=module").content.decode()
    assert f'href="/models/{demo.pk}/tokenizer/" aria-current="page"' in text
    assert f'href="/models/{demo.pk}/?tab=layers"' in text
    assert "2 tokens, 8 characters, 8 bytes" in text and "Rows that no token uses" in text
    assert " style=" not in text
    assert f'href="/models/{demo.pk}/tokenizer/"' in operator.get(f"/models/{demo.pk}/").content.decode()


@pytest.mark.parametrize("region", ["tokens-region", "vocabulary-region"])
def test_a_form_gets_its_region_alone(operator: Client, demo: Checkpoint, region: str) -> None:
    response = operator.get(f"/models/{demo.pk}/tokenizer/?text=a&q=a", headers={"HX-Target": region})
    assert response.content.decode().startswith(f'<div id="{region}"')
    missing = operator.get("/models/3f2504e0-4f89-11d3-9a0c-0305e82c3301/tokenizer/", headers={"HX-Target": region})
    assert missing.status_code == 404


def test_texts_beyond_the_limit_are_refused_in_words(operator: Client, demo: Checkpoint) -> None:
    text = operator.get(f"/models/{demo.pk}/tokenizer/?text={'a' * 4001}").content.decode()
    assert "text has 4,001 characters; this page cuts at most 4,000" in text
    assert "text has a NUL" in operator.get(f"/models/{demo.pk}/tokenizer/?text=a%00b").content.decode()


def test_hostile_tokens_stay_text(operator: Client, tmp_path: Path) -> None:
    place = shutil.copytree(DEMO, tmp_path / "hostile")
    content = json.loads((place / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[HOSTILE] = vocabulary.pop(content["added_tokens"][0]["content"])
    content["added_tokens"][0]["content"] = HOSTILE
    (place / "tokenizer.json").write_text(json.dumps(content))
    (place / "tokenizer_config.json").unlink()
    row = services.checkpoint_register(path=place)
    text = operator.get(f"/models/{row.pk}/tokenizer/?special=1&text={quote(HOSTILE)}&q=onerror").content.decode()
    assert "1 token," in text and "1 to 1 of 1" in text
    assert "<img src=x" not in text and "&lt;img src=x" in text and "\\u202e</bdi>" in text


def test_models_without_a_tokenizer_say_so(operator: Client, tmp_path: Path) -> None:
    place = tmp_path / "bare"
    place.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(DEMO / name, place)
    row = services.checkpoint_register(path=place, overrides={"vocabulary": "none"})
    assert "token ids only" in operator.get(f"/models/{row.pk}/tokenizer/").content.decode()
