"""Create, look up and delete files of the API, as database rows over the bytes of the file store.

Each lookup for a caller starts at ``files_of``, because a key may see only its own files. All functions are
synchronous and use the database and the disk: call them off the event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, QuerySet, Sum
from django.utils import timezone

from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull, RequestTooLarge, StorageFull
from inference.files import store as file_store
from inference.host.fault_points import fault_point
from inference.models import Batch, BatchState, Schedule, StoredFile
from inference.models.readable_rows import readable_rows
from inference.values.images import MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from inference.values.principal import Principal
    from inference.values.request_key import RequestKey

UPLOAD_PURPOSES = ("batch", "vision")
MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 30 * 24 * 3600
"""OpenAI's limits of expires_after.seconds."""
MAX_FILES_PER_TENANT = 10_000
MAX_BYTES_PER_TENANT = 16 << 30
MAX_BYTES = 128 << 30
"""Bytes of all files of a tenant, and of the server. Outputs of batches count, and are stored also above the limits."""


def file_create(
    *,
    writer: file_store.FileWriter,
    filename: str,
    purpose: str,
    tenant: str,
    expires_s: int | None,
    request_key: RequestKey | None = None,
) -> StoredFile:
    """Publish the bytes of ``writer`` and store their row; a request with a known key returns the row of the first one.

    The key of an expired file is free again.

    Args:
        writer: Has received all bytes; this function ends it.
        filename: Name for people, without a path.
        purpose: OpenAI's purpose of the file, such as ``batch``.
        expires_s: Seconds until the file expires; None: the server's default.

    Raises:
        IdempotencyKeyReused: The key came with another request before.
        QueueFull: The tenant has too many files.
        RequestTooLarge: The tenant's files would have too many bytes.
        StorageFull: The files of all tenants would have too many bytes, or the disk is full.
    """
    try:
        writer.flush()  # before the lock, for which everybody waits
        with file_store.store_lock():  # so that simultaneous uploads see each other's rows
            if request_key is not None:
                rows = StoredFile.objects.filter(tenant=tenant, request_key=request_key.name)
                rows.filter(expires_at__lte=timezone.now()).update(request_key=None, request_digest="")
                earlier = rows.first()
                if earlier is not None:
                    request_key.check_digest(earlier.request_digest)
                    return earlier
            _check_quotas(tenant, writer.size_bytes)
            row = file_store_row(
                writer=writer,
                filename=filename,
                purpose=purpose,
                tenant=tenant,
                expires_s=expires_s,
                request_key=request_key,
            )
            fault_point("file.stored")
            return row
    finally:
        writer.discard()


def _check_quotas(tenant: str, size_bytes: int) -> None:
    own = StoredFile.objects.filter(tenant=tenant).aggregate(number=Count("pk"), size=Sum("size_bytes"))
    if own["number"] >= MAX_FILES_PER_TENANT:
        raise QueueFull(
            f"{MAX_FILES_PER_TENANT} files are stored already; delete some first.", param="file", retry_after_s=60
        )
    used = own["size"] or 0
    if used + size_bytes > MAX_BYTES_PER_TENANT:
        raise RequestTooLarge(
            f"The file has {size_bytes:,} bytes and your stored files have {used:,}; the limit is "
            f"{MAX_BYTES_PER_TENANT:,} bytes for all of them. Delete files first (DELETE /v1/files/{{id}}).",
            param="file",
        )
    check_server_bytes(size_bytes)


def check_server_bytes(size_bytes: int) -> None:
    """Refuse a file for which the files of all callers leave no room.

    Raises:
        StorageFull: They would have too many bytes.
    """
    used = StoredFile.objects.aggregate(size=Sum("size_bytes"))["size"] or 0
    if used + size_bytes > MAX_BYTES:
        raise StorageFull(
            f"The file has {size_bytes:,} bytes and the server's files have {used:,}; the limit is {MAX_BYTES:,} "
            "bytes for all callers. Delete files that are no longer needed, or try again when some have expired.",
            param="file",
        )


def file_store_row(
    *,
    writer: file_store.FileWriter,
    filename: str,
    purpose: str,
    tenant: str,
    expires_s: int | None,
    request_key: RequestKey | None = None,
) -> StoredFile:
    """``file_create`` without the limits, for callers that hold ``store_lock``, taken before any transaction."""
    now = timezone.now()
    return StoredFile.objects.create(
        file_id=f"file-{secrets.token_hex(16)}",
        tenant=tenant,
        filename=filename,
        purpose=purpose,
        size_bytes=writer.size_bytes,
        sha256=writer.publish(),
        request_key=None if request_key is None else request_key.name,
        request_digest="" if request_key is None else request_key.digest,
        created_at=now,
        expires_at=_expires_at(now, expires_s),
    )


def file_expiry_renew(*, file_id: str, principal: Principal) -> None:
    """Let a file expire as late as one that is uploaded now without an expiry; never while a schedule needs it.

    Raises:
        NotFound: There is no such file, or it belongs to another tenant.
    """
    file_release(file_id=file_get(file_id=file_id, principal=principal).file_id)


def file_hold(row: StoredFile) -> None:
    """Let a file that a schedule needs never expire; call it in the transaction that stores the need.

    Raises:
        NotFound: It was deleted meanwhile.
    """
    if not StoredFile.objects.filter(pk=row.pk).update(expires_at=None):
        raise _unknown(row.file_id, "input_file_id")


def file_release(*, file_id: str) -> None:
    """Let a file that no schedule needs any more expire as late as one that is uploaded now without an expiry."""
    if file_id and not Schedule.objects.filter(input_file_id=file_id).exists():
        StoredFile.objects.filter(file_id=file_id).update(expires_at=_expires_at(timezone.now(), None))


def _expires_at(now: datetime, expires_s: int | None) -> datetime | None:
    """Return when a file expires; None: never.

    Args:
        expires_s: Seconds from ``now``; None: the server's default.
    """
    seconds = expires_s if expires_s is not None else int(settings.BLAZR_FILE_EXPIRE_DAYS) * 86_400
    return now + timedelta(seconds=seconds) if seconds else None


def files_of(principal: Principal) -> QuerySet[StoredFile]:
    """Return the files that ``principal`` may see, without expired files that aren't swept yet."""
    rows = StoredFile.objects.exclude(expires_at__lte=timezone.now())
    return rows if principal.sees_everything else rows.filter(tenant=principal.tenant)


def file_get(*, file_id: str, principal: Principal, param: str = "file_id") -> StoredFile:
    """Return one file.

    Raises:
        NotFound: There is no such file, or it belongs to another tenant.
    """
    row = None if "\0" in file_id else files_of(principal).filter(file_id=file_id[:40]).first()
    if row is None:
        raise _unknown(file_id, param)
    return row


def _unknown(file_id: str, param: str) -> NotFound:
    return NotFound(f"There is no file with the id {file_id[:60]!r}.", param=param)


def image_file_read(*, file_id: str, tenant: str, where: str) -> bytes:
    """Return the bytes of a tenant's file that a request names as a picture.

    Args:
        where: The picture's place in the request, for messages.

    Raises:
        NotFound: There is no such file, or it belongs to another tenant.
        InvalidRequest: It is too large for a picture.
    """
    rows = StoredFile.objects.exclude(expires_at__lte=timezone.now()).filter(tenant=tenant)
    row = None if "\0" in file_id else rows.filter(file_id=file_id[:40]).first()
    missing = NotFound(
        f"{where}: there is no file with the id {file_id[:60]!r}; GET /v1/files lists yours.", param=where
    )
    if row is None:
        raise missing
    if row.size_bytes > MAX_IMAGE_BYTES:
        raise InvalidRequest(
            f"{where}: the file {file_id} has {row.size_bytes:,} bytes, images may have {MAX_IMAGE_BYTES:,}; scale it "
            "down.",
            param=where,
        )
    try:
        with file_store.open_file(row.sha256) as file:
            return file.read()
    except FileNotFoundError:  # deleted meanwhile
        raise missing from None


def file_list(
    *, principal: Principal, purpose: str | None, after: str | None, limit: int, oldest_first: bool
) -> list[StoredFile]:
    """Return files in order of creation, starting after the file ``after``.

    Raises:
        NotFound: There is no file ``after``.
    """
    rows = files_of(principal).order_by("id" if oldest_first else "-id")
    if purpose is not None:
        rows = rows.filter(purpose=purpose.replace("\0", ""))
    if after is not None:
        key = file_get(file_id=after, principal=principal, param="after").pk
        rows = rows.filter(pk__gt=key) if oldest_first else rows.filter(pk__lt=key)
    return readable_rows(rows, limit)


def file_delete(*, file_id: str, principal: Principal) -> str:
    """Delete a file and return its id. A batch that is validating the file fails.

    Raises:
        NotFound: There is no such file, or it belongs to another tenant.
        Conflict: A schedule needs it.
    """
    row = file_get(file_id=file_id, principal=principal)
    schedule = Schedule.objects.filter(input_file_id=row.file_id).values_list("schedule_id", flat=True).first()
    if schedule is not None:
        raise Conflict(
            f"The file {row.file_id} is the input of the schedule {schedule}; delete the schedule, or give it another "
            "file, first.",
            param="file_id",
        )
    files_remove(StoredFile.objects.filter(pk=row.pk))
    return row.file_id


def files_sweep() -> int:
    """Delete expired files, and return their number. Several processes may run this at once.

    The input of a batch that is being validated is deleted later.
    """
    validated = Batch.objects.filter(state=BatchState.VALIDATING, ended_at=None).values("input_file_id")
    expired = StoredFile.objects.filter(expires_at__lte=timezone.now()).exclude(file_id__in=validated)
    keys = list(expired.values_list("pk", flat=True)[:1000])
    return files_remove(StoredFile.objects.filter(pk__in=keys)) if keys else 0


def stray_files_sweep() -> int:
    """Remove the bytes that killed processes left without a row; returns the number of files. Reads the whole store."""
    return file_store.sweep_strays(_named_digests)


def _named_digests(digests: Collection[str]) -> set[str]:
    rows = StoredFile.objects.order_by().values_list("sha256", flat=True).distinct()
    return set(rows) & set(digests) if digests else set()


def files_remove(rows: QuerySet[StoredFile]) -> int:
    """Delete rows, and the bytes that no other row has; returns the number of rows. Don't hold ``store_lock``."""
    with file_store.store_lock():
        with transaction.atomic():
            removed = file_rows_remove(rows)
        unnamed_bytes_remove(removed)
    return len(removed)


def file_rows_remove(rows: QuerySet[StoredFile]) -> list[str]:
    """Delete rows and return their digests, for ``unnamed_bytes_remove`` when the transaction has ended."""
    digests = list(rows.values_list("sha256", flat=True))
    rows.delete()
    return digests


def unnamed_bytes_remove(digests: Collection[str]) -> None:
    """Remove the bytes that no row has; the caller holds ``store_lock`` and no transaction."""
    for sha256 in set(digests):
        if not StoredFile.objects.filter(sha256=sha256).exists():
            file_store.remove(sha256)


def expiry_seconds(values: dict[str, Any] | None, *, param: str) -> int | None:
    """Read OpenAI's ``expires_after``: ``{"anchor": "created_at", "seconds": 3600 … 2592000}``.

    Raises:
        InvalidRequest: The value has another form.
    """
    if values is None:
        return None
    for name in values:
        if name not in ("anchor", "seconds"):
            raise InvalidRequest(f"{param}.{name[:60]} is not a member; it has anchor and seconds.", param=param)
    if values.get("anchor") != "created_at":
        raise InvalidRequest(f"{param}.anchor must be 'created_at'.", param=f"{param}.anchor")
    seconds = values.get("seconds")
    if type(seconds) is not int or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S:
        raise InvalidRequest(
            f"{param}.seconds must be an integer from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.", param=f"{param}.seconds"
        )
    return seconds


def file_object(row: StoredFile) -> dict[str, Any]:
    """Return OpenAI's file object: https://platform.openai.com/docs/api-reference/files/object."""
    return {
        "id": row.file_id,
        "object": "file",
        "bytes": row.size_bytes,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": None if row.expires_at is None else int(row.expires_at.timestamp()),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }
