"""Load and unload LoRA adapters by one name each, as vLLM's clients do, with rows behind the names."""

from __future__ import annotations

from contextlib import suppress

from django.db import transaction

from inference.errors import BlazrError, Conflict, InvalidRequest, NotFound, UnknownModel
from inference.values.principal import Principal
from models_registry.adapter_loading import adapter_load
from models_registry.adapter_names import check_adapter_name, full_name, split_name
from models_registry.adapters import adapter_register, adapter_remove, checked_place
from models_registry.aliases import alias_delete, alias_promote
from models_registry.models import Adapter, AliasRevision, Checkpoint, ModelAlias
from models_registry.selectors import checkpoint_get_by_name


class _Removed(Conflict):
    """The row was there before this load, and another call has removed it meanwhile."""


def lora_adapter_load(*, name: str, path: str, principal: Principal) -> None:
    """Register an adapter, load it into memory if its base is there, and let ``name`` mean it.

    Args:
        name: ``BASE:NAME``; or ``NAME`` on a server with one model, which becomes an alias of it.

    Raises:
        InvalidRequest: The name has no base, and the server has several models.
        Conflict: Something else has the name, or adapters that were loaded ahead have all places.
        BlazrError: As ``adapter_register`` and ``adapter_load``. Nothing is registered then.
    """
    base, own = _base_and_name(name, principal)
    check_adapter_name(own)
    try:
        _load(base, name, own, path, principal)
    except _Removed:  # by another call that had registered it and failed, or by an unload
        _load(base, name, own, path, principal)


def _load(base: Checkpoint, name: str, own: str, path: str, principal: Principal) -> None:
    """Register the adapter ``own`` of ``base`` unless it is, load it, and let ``name`` mean it.

    Raises:
        BlazrError: As ``lora_adapter_load``; ``_Removed`` if another try would register it anew.
    """
    row = Adapter.objects.filter(base=base, name=own).first()
    if row is not None and row.path != str(checked_place(path)):
        raise Conflict(
            f"The LoRA adapter {name!r} has already been loaded from another path; unload it first.", param="lora_name"
        )
    is_new = row is None
    if row is None:
        row = adapter_register(checkpoint=base, path=path, name=own)
    has_alias = False
    try:
        if name == own and not _means(name, row):
            if ModelAlias.objects.filter(name=name).exists():
                raise Conflict(f"The alias {name!r} means something else; give another name.", param="lora_name")
            alias_promote(name=name, checkpoint=base, adapter=row, author_name=principal.name)
            has_alias = True
        adapter_load(checkpoint=base, adapter_id=row.pk)
    except BlazrError as error:
        _take_back(row, alias=name if has_alias else None, is_new=is_new)
        is_lost = isinstance(error, Conflict | NotFound) and not Adapter.objects.filter(pk=row.pk).exists()
        if is_lost and not is_new:
            raise _Removed(error.message, param=error.param) from error
        raise


def lora_adapter_unload(*, name: str, principal: Principal) -> None:
    """Take an adapter out of memory and registry, with the alias that ``lora_adapter_load`` made; its files stay.

    Raises:
        UnknownModel: There is none of this name.
        Conflict: Another alias means it, or the one of this name has a history of promotions.
    """
    row = _row(name)
    if row is None:
        raise UnknownModel(
            f"The LoRA adapter {name[:120]!r} cannot be found; GET /v1/models lists those with a parent.",
            param="lora_name",
        )
    principal.check_model(row.base.served_model_name)
    if name == row.name:
        others = AliasRevision.objects.filter(adapter=row).exclude(alias__name=name).filter(alias__current__adapter=row)
        other = others.values_list("alias__name", flat=True).first()
        if other is not None:
            raise Conflict(f"The alias {other!r} means this adapter, too; delete it first.", param="lora_name")
    with transaction.atomic():
        if name == row.name:
            _delete_own_alias(row)
        adapter_remove(checkpoint=row.base, adapter_id=row.pk)


def _take_back(row: Adapter, *, alias: str | None, is_new: bool) -> None:
    """Remove what a load that failed has made, unless another one of the same name succeeded meanwhile."""
    with transaction.atomic():
        now = Adapter.objects.select_for_update().filter(pk=row.pk).first()
        if now is None or now.loaded_at != row.loaded_at:
            return
        if alias is not None:
            alias_delete(name=alias)
        if is_new:
            with suppress(Conflict):  # another call has made an alias of it
                adapter_remove(checkpoint=row.base, adapter_id=row.pk)


def _delete_own_alias(row: Adapter) -> None:
    """Delete the alias that ``lora_adapter_load`` made.

    Raises:
        Conflict: It has been promoted since or before.
    """
    alias = ModelAlias.objects.select_for_update().filter(name=row.name).first()
    if alias is None:
        return
    if alias.revisions.count() != 1:
        raise Conflict(
            f"The alias {row.name!r} has had other meanings, which would be lost; delete the alias itself, or promote "
            f"another model to it, then unload {full_name(row.base.served_model_name, row.name)!r}.",
            param="lora_name",
        )
    alias.delete()


def _base_and_name(name: str, principal: Principal) -> tuple[Checkpoint, str]:
    parts = split_name(name)
    if parts is not None:
        base = checkpoint_get_by_name(parts[0])
        principal.check_model(base.served_model_name)
        return base, parts[1]
    rows = Checkpoint.objects.filter(state=Checkpoint.State.AVAILABLE).order_by("served_model_name")
    if principal.models is not None:
        rows = rows.filter(served_model_name__in=principal.models)
    names = list(rows.values_list("served_model_name", flat=True)[:6])
    if len(names) != 1:
        known = ", ".join(names[:5]) or "none"
        raise InvalidRequest(
            f"lora_name {name[:120]!r} names no base, and this server has no single model (it has {known}); give "
            f"{full_name('BASE', 'NAME')}.",
            param="lora_name",
        )
    return checkpoint_get_by_name(names[0]), name


def _row(name: str) -> Adapter | None:
    """Return the adapter of ``BASE:NAME``, or of an alias that is called like it."""
    parts = split_name(name) if "\0" not in name else None
    rows = Adapter.objects.select_related("base")
    if parts is not None:
        return rows.filter(base=checkpoint_get_by_name(parts[0]), name=parts[1]).first()
    alias = ModelAlias.objects.filter(name=name).select_related("current").first() if "\0" not in name else None
    if alias is None or alias.current is None or alias.current.adapter_id is None:
        return None
    return rows.filter(pk=alias.current.adapter_id, name=name).first()


def _means(name: str, row: Adapter) -> bool:
    return ModelAlias.objects.filter(name=name, current__adapter=row).exists()
