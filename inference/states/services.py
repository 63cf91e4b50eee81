"""Store, look up, change and delete saved states: rows with names over the files of ``inference.files``.

A state belongs to a caller's tenant, and nobody else sees it. Its bytes are a file of the purpose ``state``, so the
rules of the file store for full disks, killed processes and expiry hold for it. All functions are synchronous and use
the database and the disk: call them off the event loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull, RequestTooLarge
from inference.files.services import (
    check_server_bytes,
    file_rows_remove,
    file_store_row,
    files_remove,
    unnamed_bytes_remove,
)
from inference.files.store import FileWriter, store_lock
from inference.host.units import format_bytes
from inference.llm.state_header import MAX_SERVED_FILE_BYTES
from inference.models import StoredFile, StoredState
from inference.models.readable_rows import readable_rows

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from inference.llm.state_header import StateHeader
    from inference.values.messages import StateOrder
    from inference.values.plan import GenerationPlan

PURPOSE = "state"
MAX_STATES_PER_TENANT = 1000
MAX_BYTES_PER_TENANT = 4 << 30
"""Bytes of all states of a tenant; those that aren't pinned make room for new ones."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOUCH_S = 60.0
"""Seconds within which a further use isn't recorded."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What a state's row says of its file.

    Attributes:
        model: Served name of the model, for people.
        weights: SHA-256 that the state's weights have in its header.
        num_tokens: Number of tokens that it goes on from.
        has_conversation: Whether messages can follow it.
    """

    model: str
    weights: str
    num_tokens: int
    has_conversation: bool

    @classmethod
    def of_file(cls, header: StateHeader) -> StateFacts:
        """Return what a file's header says."""
        return cls(header.model, header.identity.weights, header.num_tokens, header.has_conversation)


def check_state_name(name: str) -> None:
    """Refuse a name that isn't 1 to 64 of ``A-Z a-z 0-9 . _ -``, the first a letter or digit.

    Raises:
        InvalidRequest: It is none.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"name is {name[:80]!r}; use 1 to 64 letters, digits, dots, hyphens and underscores, the first of them a "
            "letter or digit.",
            param="name",
        )


def check_name_is_free(*, name: str, tenant: str) -> None:
    """Refuse a name that a state of the tenant has.

    Raises:
        Conflict: One has it.
    """
    check_state_name(name)
    if states_of(tenant).filter(name=name).exists():
        raise Conflict(_taken(name), param="name")


def _taken(name: str) -> str:
    return (
        f"There is a state {name!r} already; delete it, choose another name, or replace it (replace: true in "
        "POST /v1/states, --replace of blazr state load)."
    )


def state_create(*, writer: FileWriter, facts: StateFacts, order: StateOrder, request_id: str = "") -> StoredState:
    """Publish the bytes of ``writer`` as a state, and remove those that have to make room for it.

    Args:
        writer: Has received the whole file; this function ends it.
        request_id: The request that saves it; a second attempt of a request returns the row of the first one.

    Raises:
        Conflict: There is a state of that name, and the order doesn't replace it.
        QueueFull: The tenant has too many states.
        RequestTooLarge: It doesn't fit beside the tenant's pinned states.
        StorageFull: The disk is full, or all callers' files have too many bytes.
    """
    tenant, name = order["tenant"], order["name"]
    try:
        if writer.size_bytes > MAX_SERVED_FILE_BYTES:
            raise RequestTooLarge(
                f"The state's file has {format_bytes(writer.size_bytes)}, at most "
                f"{format_bytes(MAX_SERVED_FILE_BYTES)} are taken; save the state of a shorter text.",
                param="file",
            )
        writer.flush()  # before the locks, for which everybody waits
        with store_lock():  # simultaneous saves see each other's rows
            earlier = StoredState.objects.filter(tenant=tenant, name=name).select_related("file").first()
            if earlier is not None and request_id and earlier.request_id == request_id:
                return earlier
            if earlier is not None and not (order["replaces"] or _is_expired(earlier)):
                raise Conflict(_taken(name), param="name")
            superfluous = _superfluous(tenant, writer.size_bytes, earlier)
            check_server_bytes(writer.size_bytes)
            with transaction.atomic():
                file = file_store_row(
                    writer=writer,
                    filename=f"{name}.state",
                    purpose=PURPOSE,
                    tenant=tenant,
                    expires_s=0 if order["is_pinned"] else order["expires_s"],
                )
                values = {
                    "file": file,
                    "model": facts.model,
                    "weights": facts.weights,
                    "num_tokens": facts.num_tokens,
                    "has_conversation": facts.has_conversation,
                    "is_pinned": order["is_pinned"],
                    "request_id": request_id,
                    "last_used_at": timezone.now(),
                }
                if earlier is not None:
                    superfluous.append(earlier.file_id)
                row, _ = StoredState.objects.update_or_create(tenant=tenant, name=name, defaults=values)
                # Under the lock, so that none is pinned meanwhile; in the transaction, so that a crash leaves no file
                # without a name.
                digests = file_rows_remove(StoredFile.objects.filter(pk__in=superfluous))
            unnamed_bytes_remove(digests)
    finally:
        writer.discard()
    return row


def _superfluous(tenant: str, size_bytes: int, earlier: StoredState | None) -> list[int]:
    """Keys of the files that make room for a new state: expired ones, then those not used for longest."""
    others = StoredState.objects.filter(tenant=tenant)
    if earlier is not None:
        others = others.exclude(pk=earlier.pk)
    # Nobody sees those that have expired, and the sweep removes them sooner or later.
    removed = list(others.filter(file__expires_at__lte=timezone.now()).values_list("file_id", flat=True))
    others = others.exclude(file__in=removed)
    if others.count() >= MAX_STATES_PER_TENANT:
        raise QueueFull(
            f"{MAX_STATES_PER_TENANT} states are saved already; delete some first.", param="name", retry_after_s=60
        )
    limit = MAX_BYTES_PER_TENANT
    sizes = list(others.order_by("last_used_at", "pk").values_list("file_id", "is_pinned", "file__size_bytes"))
    used = sum(size for _, _, size in sizes)
    for key, is_pinned, size in sizes:
        if used + size_bytes <= limit:
            break
        if not is_pinned:
            removed.append(key)
            used -= size
    if used + size_bytes > limit:
        raise RequestTooLarge(
            f"The state has {format_bytes(size_bytes)} and your pinned states have {format_bytes(used)}; the limit is "
            f"{format_bytes(limit)}. Delete some, or unpin them.",
            param="name",
        )
    return removed


def _is_expired(row: StoredState) -> bool:
    return row.file.expires_at is not None and row.file.expires_at <= timezone.now()


def unexpired_states() -> QuerySet[StoredState]:
    """Return the states of all tenants, without expired ones that aren't swept yet."""
    return StoredState.objects.select_related("file").exclude(file__expires_at__lte=timezone.now())


def states_of(tenant: str) -> QuerySet[StoredState]:
    """Return the unexpired states of a tenant."""
    return unexpired_states().filter(tenant=tenant)


def state_get(*, name: str, tenant: str, param: str = "name") -> StoredState:
    """Return one state.

    Raises:
        NotFound: The tenant has no state of this name.
    """
    row = None if "\0" in name else states_of(tenant).filter(name=name[:80]).first()
    if row is None:
        raise NotFound(f"There is no state {name[:80]!r}; GET /v1/states lists yours.", param=param)
    return row


def state_saved(*, name: str, tenant: str, request_id: str) -> StoredState:
    """Return the state that a request has saved.

    Raises:
        Conflict: Another request has deleted or replaced it meanwhile.
    """
    row = states_of(tenant).filter(name=name, request_id=request_id).first()
    if row is None:
        raise Conflict(
            f"The state {name!r} was saved, and another request has deleted or replaced it since.", param="name"
        )
    return row


def state_list(*, tenant: str, after: str | None, limit: int) -> list[StoredState]:
    """Return states, the latest first, starting after the state ``after``.

    Raises:
        NotFound: There is no state ``after``.
    """
    rows = states_of(tenant).order_by("-id")
    if after is not None:
        rows = rows.filter(pk__lt=state_get(name=after, tenant=tenant, param="after").pk)
    return readable_rows(rows, limit)


def state_set_pinned(*, name: str, tenant: str, is_pinned: bool) -> StoredState:
    """Pin a state, which then neither expires nor makes room for others, or unpin it: it expires as a new one.

    Raises:
        NotFound: The tenant has no state of this name.
    """
    with store_lock(), transaction.atomic():  # nobody deletes or replaces the state meanwhile
        row = state_get(name=name, tenant=tenant)
        if row.is_pinned != is_pinned:
            days = int(settings.BLAZR_FILE_EXPIRE_DAYS)
            row.is_pinned = is_pinned
            row.file.expires_at = None if is_pinned or not days else timezone.now() + timedelta(days=days)
            row.file.save(update_fields=["expires_at"])
            row.save(update_fields=["is_pinned"])
    return row


def state_delete(*, name: str, tenant: str) -> None:
    """Delete a state; requests that have read it go on.

    Raises:
        NotFound: The tenant has no state of this name.
    """
    row = state_get(name=name, tenant=tenant)
    files_remove(StoredFile.objects.filter(pk=row.file_id))


def plan_with_state(plan: GenerationPlan, tenant: str) -> GenerationPlan:
    """Return ``plan`` with the file of the state that it names, and record the state's use.

    Raises:
        NotFound: The tenant has no state of this name.
    """
    if plan.state is None:
        return plan
    row = state_get(name=plan.state, tenant=tenant, param="state")
    now = timezone.now()
    if now - row.last_used_at > timedelta(seconds=_TOUCH_S):
        StoredState.objects.filter(pk=row.pk).update(last_used_at=now)
    return replace(plan, state_file=row.file.sha256, state_tokens=row.num_tokens)


def state_object(row: StoredState) -> dict[str, Any]:
    """Return a state as the API shows it."""
    file = row.file
    return {
        "id": row.name,
        "object": "state",
        "name": row.name,
        "model": row.model,
        "weights": row.weights,
        "tokens": row.num_tokens,
        "bytes": file.size_bytes,
        "takes_messages": row.has_conversation,
        "pinned": row.is_pinned,
        "created_at": int(file.created_at.timestamp()),
        "last_used_at": int(row.last_used_at.timestamp()),
        "expires_at": None if file.expires_at is None else int(file.expires_at.timestamp()),
    }
