"""The usage of a model: its spans, its callers, and who sees which of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.models import UsageDay, UsageSpan
from inference.records.usage_spans import DAY, HOUR, MINUTE, last_begin
from models_registry import services
from models_registry.models import Checkpoint
from tests.accounts import account
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
LATENCIES = {"ttft_p50_s": 0.1, "ttft_p95_s": 0.25, "itl_p50_s": 0.01, "itl_p95_s": 0.02}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    row = services.checkpoint_register(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    now = timezone.now()
    for length_s, requests, rate in ((MINUTE, 3, 30.0), (HOUR, 3, None), (DAY, 1234, None)):
        begin = last_begin(now, length_s)
        values = {"requests": requests, "failures": 2, "prompt_tokens": 50, "cached_tokens": 25, **LATENCIES}
        UsageSpan.objects.create(
            begin=begin, length_s=length_s, model="tiny", completion_tokens=7, tokens_per_s=rate, **values
        )
        UsageSpan.objects.create(begin=begin, length_s=length_s, model="other", requests=98765)
    return row


def page(client: Client, row: Checkpoint, role: str, query: str = "", **headers: str) -> str:
    client.force_login(account(role, role))
    return client.get(f"/models/{row.pk}/usage/{query}", headers=headers).content.decode()


def use(row: Checkpoint) -> None:
    """A key with three quarters of the tokens, a caller without a key, and one of another model."""
    key, _ = api_key_create(name="nightly job")
    day = timezone.now().date()
    UsageDay.objects.create(
        day=day, tenant=f"key:{key.pk}", model="tiny", requests=2, prompt_tokens=700, completion_tokens=50, joules=7200
    )
    UsageDay.objects.create(day=day, tenant="local", model="tiny", requests=1, prompt_tokens=250)
    UsageDay.objects.create(day=day, tenant="elsewhere", model="other", requests=1, prompt_tokens=5000)


def test_the_last_hour_and_day_of_this_model(client: Client, checkpoint: Checkpoint) -> None:
    text = page(client, checkpoint, "operator", "?span=day")
    assert 'aria-current="page">Usage</a>' in text
    for words in (
        "1,234",
        "Prompt tokens",
        "Output tokens",
        "100 ms",
        "250 ms",
        "50 %",
        "up to 30",
        f"/requests/?q={checkpoint.served_model_name}",
    ):
        assert words in text, words
    assert "98,765" not in text and " style=" not in text


def test_shares_of_callers_and_their_energy(client: Client, checkpoint: Checkpoint) -> None:
    use(checkpoint)
    text = page(client, checkpoint, "operator")
    assert "nightly job" in text and "local" in text and "elsewhere" not in text
    assert "75 %" in text and "25 %" in text and "2 Wh" in text
    assert text.index("nightly job") < text.index("local: share")


def test_accounts_are_shown_by_their_names(client: Client, checkpoint: Checkpoint) -> None:
    user = account("edwin", "member")
    UsageDay.objects.create(day=timezone.now().date(), tenant=f"user:{user.pk}", model="tiny", prompt_tokens=1)
    assert f'<span title="user:{user.pk}">edwin</span>' in page(client, checkpoint, "operator")


def test_energy_is_left_out_where_none_was_counted(client: Client, checkpoint: Checkpoint) -> None:
    UsageDay.objects.create(day=timezone.now().date(), tenant="local", model="tiny", prompt_tokens=1)
    assert "Energy" not in page(client, checkpoint, "operator")


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_callers_are_for_those_who_see_usage(client: Client, checkpoint: Checkpoint, role: str) -> None:
    use(checkpoint)
    text = page(client, checkpoint, role)
    assert "1,234" in text
    for words in ("nightly job", "Who used it", "/requests/", "Energy"):
        assert words not in text, words


def test_a_model_that_nobody_used_says_so(client: Client, checkpoint: Checkpoint) -> None:
    UsageSpan.objects.all().delete()
    text = page(client, checkpoint, "operator")
    assert text.count("No figures yet") == 2 and "Nothing to draw" in text and "Nobody used it" in text


def test_the_head_alone_reads_no_usage(client: Client, checkpoint: Checkpoint) -> None:
    text = page(client, checkpoint, "operator", **{"HX-Target": "live-words"})
    assert 'id="live-words"' in text and "1,234" not in text
