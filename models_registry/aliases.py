"""Manage aliases: names that point to a checkpoint or to a LoRA adapter of one, with a history of revisions.

``promote`` creates a revision, ``rollback`` returns to an older one; revisions never change. ``NAME`` refers to the
current revision, ``NAME@N`` the one of that number. All functions use the database: call them off the event loop.
"""

from __future__ import annotations

import re
import uuid

from django.db import transaction
from django.db.models import Q

from inference.errors import Conflict, NotFound, UnknownModel
from models_registry.adapter_names import names_adapter
from models_registry.models import Adapter, AliasRevision, Checkpoint, ModelAlias, TrainingRun
from models_registry.names import check_name
from models_registry.passport_gaps import passport_gap

_EXACT = re.compile(r"(.+)@(\d{1,9})")


def alias_promote(
    *, name: str, checkpoint: Checkpoint, adapter: Adapter | None = None, author_name: str = ""
) -> AliasRevision:
    """Point an alias to ``checkpoint``, and create the alias if there is none.

    Args:
        adapter: Of the checkpoint, which the alias is to mean; None: the checkpoint alone.

    Raises:
        InvalidRequest: The name is not legal.
        Conflict: The name is a checkpoint's own, or means this already, or the alias demands a passport that the
            checkpoint doesn't have, or that no adapter has.
    """
    check_name(name)
    if Checkpoint.objects.filter(served_model_name=name).exists():
        raise Conflict(f"{name!r} is the name of a checkpoint; choose another one for the alias.", param="model")
    if names_adapter(name):
        raise Conflict(f"{name!r} is the name of an adapter; choose another one for the alias.", param="model")
    with transaction.atomic():
        ModelAlias.objects.get_or_create(name=name)
        alias = ModelAlias.objects.select_for_update().get(name=name)
        last = alias.revisions.order_by("-number").first()
        revision = AliasRevision(
            alias=alias,
            number=1 if last is None else last.number + 1,
            checkpoint=checkpoint,
            checkpoint_name=checkpoint.served_model_name,
            adapter=adapter,
            adapter_name="" if adapter is None else adapter.name,
            author_name=author_name[:150],
        )
        now = alias.current
        if now is not None and (now.checkpoint_id, now.adapter_id, now.adapter_name) == (
            revision.checkpoint_id, revision.adapter_id, revision.adapter_name,
        ):  # fmt: skip
            raise Conflict(f"{name!r} means {revision.meaning!r} already.", param="model")
        if adapter is not None and alias.demands_passport:
            raise Conflict(
                f"{name!r} demands a passport, which adapters don't have; promote a checkpoint, perhaps with the "
                "adapter merged into it (blazr merge).",
                param="model",
            )
        check_demand(alias, checkpoint)
        revision.save()
        alias.current = revision
        alias.save(update_fields=["current", "updated_at"])
    return revision


def alias_rollback(*, name: str, number: int | None = None) -> AliasRevision:
    """Point an alias to an earlier revision, also without the passport that the alias demands of a promotion.

    The earlier model has served before; one that turned out to be wrong has to be replaced at once.

    Args:
        number: The revision; None: the one before the current one.

    Raises:
        UnknownModel: There is no such alias.
        NotFound: The alias has no such revision.
        Conflict: The revision's checkpoint or adapter was deleted, or it is the current one.
    """
    with transaction.atomic():
        alias = ModelAlias.objects.select_for_update().filter(name=name).first()
        if alias is None or alias.current is None:
            raise _unknown(name)
        target = alias.current.number - 1 if number is None else number
        revision = alias.revisions.filter(number=target).first()
        if revision is None:
            raise NotFound(f"{name!r} has no revision {target}.", param="revision")
        if revision.pk == alias.current.pk:
            raise Conflict(f"Revision {target} of {name!r} is the current one.", param="revision")
        if not revision.is_available:
            raise Conflict(
                f"Revision {target} of {name!r} was {revision.meaning!r}, which has been deleted.", param="revision"
            )
        alias.current = revision
        alias.save(update_fields=["current", "updated_at"])
    return revision


def alias_demand(*, name: str, demands_passport: bool) -> ModelAlias:
    """Set whether an alias takes only checkpoints with a passport; what it means now stays.

    Raises:
        UnknownModel: There is no such alias.
        Conflict: A training run is watched under this name: its alias means every checkpoint that is completed.
    """
    alias = alias_get(name)
    if demands_passport and TrainingRun.objects.filter(name=name).exists():
        raise Conflict(
            f"{name!r} is the name of a watched training run and means each checkpoint that it completes; promote to "
            "another alias that demands a passport.",
            param="demands_passport",
        )
    alias.demands_passport = demands_passport
    alias.save(update_fields=["demands_passport", "updated_at"])
    return alias


def check_demand(alias: ModelAlias, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint has the passport that an alias demands.

    Raises:
        Conflict: It hasn't; names what is missing.
    """
    gap = passport_gap(checkpoint) if alias.demands_passport else ""
    if gap:
        raise Conflict(
            f"{alias.name!r} demands a passport, which {checkpoint.served_model_name!r} lacks: {gap}.", param="model"
        )


def alias_delete(*, name: str) -> bool:
    """Delete an alias and its history; the checkpoints stay. False if there is no such alias."""
    return bool(ModelAlias.objects.filter(name=name).delete()[0]) if "\0" not in name else False


def alias_checkpoint_id(name: str) -> uuid.UUID | None:
    """Return the checkpoint of ``NAME`` or ``NAME@N``; None: there is no such alias, or it means something else."""
    revision = alias_revision(name)
    return None if revision is None or revision.adapter_name else revision.checkpoint_id


def alias_adapter_key(name: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Return checkpoint and adapter that ``NAME`` or ``NAME@N`` means; None: there is no such alias of an adapter.

    Raises:
        UnknownModel: It means an adapter that was removed.
    """
    revision = alias_revision(name)
    if revision is None or not revision.adapter_name:
        return None
    if revision.checkpoint_id is None or revision.adapter_id is None:
        raise UnknownModel(
            f"The alias {name!r} means the adapter {revision.meaning!r}, which was removed; promote another model to "
            "it, or register the adapter again and promote that.",
            param="model",
        )
    return revision.checkpoint_id, revision.adapter_id


def alias_revision(name: str) -> AliasRevision | None:
    """Return the revision that ``NAME`` or ``NAME@N`` means; None: there is none."""
    if "\0" in name:
        return None
    exact = _EXACT.fullmatch(name)
    if exact is not None:
        return AliasRevision.objects.filter(alias__name=exact[1], number=int(exact[2])).first()
    alias = ModelAlias.objects.select_related("current").filter(name=name).first()
    return None if alias is None else alias.current


def alias_get(name: str) -> ModelAlias:
    """Return the alias with its revisions, newest first.

    Raises:
        UnknownModel: There is no such alias.
    """
    rows = ModelAlias.objects.select_related("current").prefetch_related("revisions")
    alias = None if "\0" in name else rows.filter(name=name).first()
    if alias is None:
        raise _unknown(name)
    return alias


def aliases_of() -> list[ModelAlias]:
    """Return all aliases whose checkpoint and adapter exist, by name."""
    rows = ModelAlias.objects.select_related("current").filter(current__checkpoint__isnull=False)
    has_adapter = Q(current__adapter_name="") | Q(current__adapter__state=Adapter.State.AVAILABLE)
    return list(rows.filter(has_adapter).order_by("name"))


def alias_names() -> list[str]:
    """Return the names of all aliases but those of training runs, which mean each completed checkpoint."""
    runs = TrainingRun.objects.values("name")
    return list(ModelAlias.objects.exclude(name__in=runs).order_by("name").values_list("name", flat=True))


def check_not_current(checkpoint: Checkpoint) -> None:
    """Check that no alias points to a checkpoint that is to be deleted.

    Raises:
        Conflict: One does; the message names it.
    """
    name = ModelAlias.objects.filter(current__checkpoint=checkpoint).values_list("name", flat=True).first()
    if name is not None:
        raise Conflict(
            f"{checkpoint.served_model_name!r} is what the alias {name!r} means; promote another checkpoint there, "
            "or delete the alias first."
        )


def check_adapter_not_current(adapter: Adapter) -> None:
    """Check that no alias points to an adapter that is to be removed.

    Raises:
        Conflict: One does; the message names it.
    """
    alias = ModelAlias.objects.select_related("current").filter(current__adapter=adapter).first()
    if alias is not None and alias.current is not None:
        raise Conflict(
            f"{alias.current.meaning!r} is what the alias {alias.name!r} means; promote another model there, or delete "
            "the alias first."
        )


def _unknown(name: str) -> UnknownModel:
    return UnknownModel(f"There is no alias {name[:120]!r}; promote a checkpoint to make one.", param="model")
