"""Aliases: revisions are numbered and never change; what an alias means can't be taken away."""

from __future__ import annotations

import uuid

import pytest
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, UnknownModel
from models_registry.aliases import (
    alias_adapter_key,
    alias_checkpoint_id,
    alias_delete,
    alias_demand,
    alias_get,
    alias_names,
    alias_promote,
    alias_revision,
    alias_rollback,
    aliases_of,
    check_adapter_not_current,
    check_not_current,
)
from models_registry.models import Adapter, AliasRevision, Checkpoint, Passport, TrainingRun
from models_registry.passport_gaps import passport_identity
from models_registry.runs.services import DEFAULTS
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def checkpoints() -> list[Checkpoint]:
    return [make_checkpoint(name) for name in ("one", "two")]


def test_each_promotion_is_a_new_revision_that_the_name_means(checkpoints):
    one, two = checkpoints
    assert alias_promote(name="chat", checkpoint=one, author_name="v" * 200).number == 1
    assert alias_promote(name="chat", checkpoint=two).number == 2
    assert alias_checkpoint_id("chat") == two.pk
    assert [alias_checkpoint_id(f"chat@{number}") for number in (1, 2, 3)] == [one.pk, two.pk, None]
    found = alias_get("chat")
    assert [(item.number, item.checkpoint_name) for item in found.revisions.all()] == [(2, "two"), (1, "one")]
    assert len(found.revisions.last().author_name) == 150


def test_a_promotion_that_would_change_nothing_or_hide_a_checkpoint_is_refused(checkpoints):
    one, two = checkpoints
    alias_promote(name="chat", checkpoint=one)
    with pytest.raises(Conflict, match="means 'one' already"):
        alias_promote(name="chat", checkpoint=one)
    with pytest.raises(Conflict, match="name of a checkpoint"):
        alias_promote(name="one", checkpoint=two)
    for name in ("", "a b", "chat@1", "a/b", "\0"):
        with pytest.raises(InvalidRequest):
            alias_promote(name=name, checkpoint=two)
    assert AliasRevision.objects.count() == 1


def test_a_rollback_goes_back_without_a_new_revision(checkpoints):
    one, two = checkpoints
    for checkpoint in (one, two, one):
        alias_promote(name="chat", checkpoint=checkpoint)
    assert alias_rollback(name="chat").number == 2
    assert alias_checkpoint_id("chat") == two.pk
    assert alias_rollback(name="chat", number=3).checkpoint_id == one.pk
    assert AliasRevision.objects.count() == 3
    with pytest.raises(Conflict, match="is the current one"):
        alias_rollback(name="chat", number=3)
    for number in (0, 4, -1):
        with pytest.raises(NotFound, match="has no revision"):
            alias_rollback(name="chat", number=number)
    with pytest.raises(UnknownModel):
        alias_rollback(name="nobody")


def test_the_first_revision_has_none_before_it(checkpoints):
    alias_promote(name="chat", checkpoint=checkpoints[0])
    with pytest.raises(NotFound, match="revision 0"):
        alias_rollback(name="chat")


def test_what_an_alias_means_now_can_not_be_taken_away(checkpoints):
    one, two = checkpoints
    alias_promote(name="chat", checkpoint=one)
    with pytest.raises(Conflict, match="'chat'"):
        check_not_current(one)
    check_not_current(two)
    alias_promote(name="chat", checkpoint=two)
    check_not_current(one)
    one.delete()
    with pytest.raises(Conflict, match="was 'one', which has been deleted"):
        alias_rollback(name="chat")
    assert alias_checkpoint_id("chat@1") is None
    assert alias_checkpoint_id("chat") == two.pk


def test_a_deleted_alias_is_forgotten_with_its_history(checkpoints):
    alias_promote(name="chat", checkpoint=checkpoints[0])
    assert [alias.name for alias in aliases_of()] == ["chat"]
    assert alias_delete(name="chat")
    assert not alias_delete(name="chat")
    assert not alias_delete(name="\0")
    assert aliases_of() == []
    assert not AliasRevision.objects.exists()
    with pytest.raises(UnknownModel, match="no alias 'chat'"):
        alias_get("chat")
    with pytest.raises(UnknownModel):
        alias_get("\0")
    assert alias_promote(name="chat", checkpoint=checkpoints[0]).number == 1


def test_an_alias_whose_checkpoint_is_gone_is_not_listed(checkpoints):
    alias_promote(name="chat", checkpoint=checkpoints[0])
    checkpoints[0].delete()
    assert aliases_of() == []
    assert alias_checkpoint_id("chat") is None


@pytest.mark.parametrize("name", ["nobody", "nobody@1", "\0", f"{uuid.uuid4()}", "chat@9999999999", "@1"])
def test_names_that_are_no_alias_mean_nothing(name):
    assert alias_checkpoint_id(name) is None


def test_an_alias_may_demand_a_passport(checkpoints):
    one, two = checkpoints
    alias_promote(name="chat", checkpoint=one)
    assert alias_demand(name="chat", demands_passport=True).demands_passport
    assert alias_checkpoint_id("chat") == one.pk
    with pytest.raises(Conflict) as refusal:
        alias_promote(name="chat", checkpoint=two)
    assert refusal.value.message == ("'chat' demands a passport, which 'two' lacks: it has none; make one on its page.")
    assert alias_get("chat").revisions.count() == 1
    Passport.objects.create(
        source=two, source_name="two", state="done", identity=passport_identity(two), active_at=timezone.now()
    )
    assert alias_promote(name="chat", checkpoint=two).number == 2
    assert alias_rollback(name="chat").number == 1  # what was promoted once can come back
    alias_demand(name="chat", demands_passport=False)
    alias_promote(name="chat", checkpoint=checkpoints[1])
    with pytest.raises(UnknownModel):
        alias_demand(name="nobody", demands_passport=True)


def test_the_alias_of_a_run_demands_nothing(checkpoints):
    TrainingRun.objects.create(name="nano", directory="/runs/nano", **DEFAULTS)
    for name in ("nano", "chat"):
        alias_promote(name=name, checkpoint=checkpoints[0])
    with pytest.raises(Conflict, match="'nano' is the name of a watched training run"):
        alias_demand(name="nano", demands_passport=True)
    assert not alias_demand(name="nano", demands_passport=False).demands_passport
    assert alias_names() == ["chat"]


def make_adapter(base: Checkpoint, name: str = "sql") -> Adapter:
    return Adapter.objects.create(base=base, name=name, path="/nowhere", digest="d", rank=4, num_values=1, size_bytes=1)


def test_an_alias_may_mean_an_adapter(checkpoints):
    one, two = checkpoints
    sql, prose = make_adapter(one), make_adapter(one, "prose")
    revision = alias_promote(name="chat", checkpoint=one, adapter=sql)
    assert (revision.meaning, revision.is_available) == ("one:sql", True)
    assert alias_checkpoint_id("chat") is None and alias_adapter_key("chat") == (one.pk, sql.pk)
    assert alias_revision("chat").adapter_id == sql.pk != prose.pk and alias_revision("nobody") is None
    with pytest.raises(Conflict, match="means 'one:sql' already"):
        alias_promote(name="chat", checkpoint=one, adapter=sql)
    assert alias_promote(name="chat", checkpoint=one).meaning == "one"  # the base is another meaning
    assert alias_adapter_key("chat") is None and alias_adapter_key("chat@1") == (one.pk, sql.pk)
    assert alias_promote(name="chat", checkpoint=one, adapter=prose).number == 3
    assert alias_rollback(name="chat", number=1).meaning == "one:sql"
    assert [alias.name for alias in aliases_of()] == ["chat"]
    Adapter.objects.filter(pk=sql.pk).update(state=Adapter.State.MISSING)
    assert aliases_of() == []
    assert alias_promote(name="chat", checkpoint=two).meaning == "two"


def test_what_an_alias_means_is_not_removed_and_errors_say_what_was(checkpoints):
    one, _ = checkpoints
    sql = make_adapter(one)
    alias_promote(name="chat", checkpoint=one, adapter=sql)
    with pytest.raises(Conflict, match="'one:sql' is what the alias 'chat' means"):
        check_adapter_not_current(sql)
    alias_promote(name="chat", checkpoint=one)
    check_adapter_not_current(sql)
    sql.delete()
    with pytest.raises(Conflict, match="was 'one:sql', which has been deleted"):
        alias_rollback(name="chat")
    with pytest.raises(UnknownModel, match="'chat@1' means the adapter 'one:sql', which was removed"):
        alias_adapter_key("chat@1")


def test_an_alias_that_demands_a_passport_takes_no_adapter(checkpoints):
    one, two = checkpoints
    alias_promote(name="chat", checkpoint=two)
    alias_demand(name="chat", demands_passport=True)
    with pytest.raises(Conflict, match="demands a passport, which adapters don't have"):
        alias_promote(name="chat", checkpoint=one, adapter=make_adapter(one))
