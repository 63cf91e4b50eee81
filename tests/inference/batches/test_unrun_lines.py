"""Lines that never run: of cancelled batches, and of keys that are void."""

from __future__ import annotations

import orjson
import pytest
from django.utils import timezone

from inference.access.account_changes import account_sign_in_change
from inference.access.accounts import principal_of_staff
from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.batches.services import batch_cancel
from inference.models import ApiKey, Batch, UsageRecord
from inference.values.principal import LOCAL
from tests.accounts import account
from tests.inference.batches.fakes import contents, line, make_batch, make_runner, work


def test_cancel_keeps_what_is_done_and_names_the_rest(manager):
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), line("b"), line("c"), line("d")])
    item = make_runner(manager, window=2)
    work(batch, item, turns=3)
    assert batch_cancel(batch_id=batch.batch_id, principal=LOCAL).state == "cancelling"
    batch = work(batch, item)
    assert batch.state == "cancelled"
    assert (batch.num_completed, batch.num_failed) == (1, 3)
    assert [item["custom_id"] for item in contents(batch.output_file_id)] == ["a"]
    assert {item["error"]["code"] for item in contents(batch.error_file_id)} == {"batch_cancelled"}
    assert manager.held == {}
    assert batch_cancel(batch_id=batch.batch_id, principal=LOCAL).state == "cancelled"


def test_cancel_before_the_validation_leaves_nothing(manager):
    batch = make_batch([line("a")])
    batch_cancel(batch_id=batch.batch_id, principal=LOCAL)
    batch = work(batch, make_runner(manager))
    assert (batch.state, batch.num_total, batch.output_file_id) == ("cancelled", 0, "")


def test_batches_of_an_account_that_may_no_longer_sign_in_end(manager):
    user = account("vera", "member")
    batch = make_batch([line("a")], principal_of_staff(user))
    other = make_batch([line("b")], principal_of_staff(account("nora", "member")))
    account_sign_in_change(actor=account("olga", "superuser"), account_id=user.pk, is_allowed=False)
    item = make_runner(manager)
    batch = work(batch, item)
    assert batch.state == "failed" and "its account may no longer sign in" in batch.errors
    assert work(other, item).state == "completed"


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_key_that_is_void_ends_its_running_batches_and_what_is_done_stays(manager, how):
    """Nobody else's: the batch of another key, and one without a key, go on."""
    row, _ = api_key_create(name="gone")
    other, _ = api_key_create(name="stays")
    manager.holds = lambda message: message["prompt"]["text"] != "done"
    batch = make_batch([line("a", "done"), *(line(name) for name in "bcdef")], principal_of_tenant(f"key:{row.pk}"))
    waiting = make_batch([line("g")], principal_of_tenant(f"key:{row.pk}"))
    others = [make_batch([line("h")], principal_of_tenant(f"key:{other.pk}")), make_batch([line("i")])]
    item = make_runner(manager, window=3)
    work(batch, item, turns=3)
    assert Batch.objects.get(pk=batch.pk).num_completed == 1
    assert manager.held
    if how == "revoked":
        api_key_revoke(prefix=row.prefix)
    else:
        ApiKey.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    manager.holds = lambda message: False
    batch = work(batch, item)
    assert (batch.state, batch.num_completed, batch.num_failed) == ("failed", 1, 5)
    (problem,) = orjson.loads(batch.errors)
    assert problem["code"] == "invalid_api_key"
    assert "revoked or has expired" in problem["message"]
    assert [found["custom_id"] for found in contents(batch.output_file_id)] == ["a"]
    ended = contents(batch.error_file_id)
    assert [found["custom_id"] for found in ended] == list("bcdef")
    assert {found["error"]["code"] for found in ended} == {"invalid_api_key"}
    assert UsageRecord.objects.filter(tenant=f"key:{row.pk}").get().completion_tokens == 2
    waiting.refresh_from_db()
    assert waiting.state == "failed"
    manager.answer_held()
    for found in others:
        assert work(found, item).state == "completed"
