"""Serve OpenAI's files: upload, list, retrieve, read, delete."""

from __future__ import annotations

from typing import IO, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from inference.api.base import ApiView, json_response
from inference.api.openai.batch_schemas import (
    FileDeletedSerializer,
    FileListSerializer,
    FileSerializer,
    FileUploadSerializer,
)
from inference.api.openai.file_upload import receive_file
from inference.api.paging import check_parameters, one_of, page_size
from inference.api.schemas import documented
from inference.errors import InvalidRequest, NotFound
from inference.files.services import (
    UPLOAD_PURPOSES,
    expiry_seconds,
    file_create,
    file_delete,
    file_get,
    file_list,
    file_object,
)
from inference.files.store import file_pieces, open_file

MAX_PAGE = 10_000


class FilesView(ApiView):
    """/v1/files."""

    rows_keep_key = True

    @documented(
        operation_id="files_create",
        summary="Upload a file",
        description="A form with the parts file and purpose: batch (lines for POST /v1/batches) or vision (images that "
        "chats name by file_id).",
        request={"multipart/form-data": FileUploadSerializer},
        responses={200: FileSerializer},
        errors=(400, 401, 403, 413, 415, 429, 503),
        tags=["batches"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Store one file."""

        def store() -> dict[str, Any]:
            received = receive_file(request, max_bytes=settings.BLAZR_MAX_FILE_BYTES)
            try:
                purpose, expires_s = _form_fields(received.fields)
            except InvalidRequest:
                received.writer.discard()
                raise
            row = file_create(
                writer=received.writer,
                filename=received.filename,
                purpose=purpose,
                tenant=self.principal.tenant,
                expires_s=expires_s,
                request_key=self.request_key,
            )
            return file_object(row)

        return json_response(await sync_to_async(store)())

    @documented(
        operation_id="files_list",
        summary="List files",
        parameters=[
            OpenApiParameter("purpose", str, description="Only files of this purpose."),
            OpenApiParameter("after", str, description="Continue after the file with this id (the last one seen)."),
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default {MAX_PAGE}."),
            OpenApiParameter("order", str, enum=["desc", "asc"], description="By creation; default desc."),
        ],
        responses={200: FileListSerializer},
        errors=(400, 401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return a page of the caller's files."""
        check_parameters(request, "purpose", "after", "limit", "order")
        limit = page_size(request, default=MAX_PAGE, largest=MAX_PAGE)
        oldest_first = one_of(request, "order", "desc", "asc") == "asc"

        def read() -> dict[str, Any]:
            rows = file_list(
                principal=self.principal,
                purpose=request.GET.get("purpose"),
                after=request.GET.get("after"),
                limit=limit + 1,
                oldest_first=oldest_first,
            )
            return page_of([file_object(row) for row in rows], limit)

        return json_response(await sync_to_async(read)())


class FileView(ApiView):
    """/v1/files/{id}."""

    @documented(
        operation_id="files_retrieve",
        summary="One file",
        responses={200: FileSerializer},
        errors=(401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest, file_id: str) -> HttpResponseBase:
        """Return the file object."""
        row = await sync_to_async(file_get)(file_id=file_id, principal=self.principal)
        return json_response(file_object(row))

    @documented(
        operation_id="files_delete",
        summary="Delete a file",
        description="A batch that is still being validated loses its input and fails; later it doesn't need it.",
        responses={200: FileDeletedSerializer},
        errors=(401, 403, 404, 503),
        tags=["batches"],
    )
    async def delete(self, request: HttpRequest, file_id: str) -> HttpResponseBase:
        """Delete a file."""
        found = await sync_to_async(file_delete)(file_id=file_id, principal=self.principal)
        return json_response({"id": found, "object": "file", "deleted": True})


class FileContentView(ApiView):
    """/v1/files/{id}/content."""

    @documented(
        operation_id="files_content",
        summary="The bytes of a file",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
        errors=(401, 404, 503),
        tags=["batches"],
    )
    async def get(self, request: HttpRequest, file_id: str) -> HttpResponseBase:
        """Stream the bytes of a file."""

        def find() -> tuple[IO[bytes], int]:
            row = file_get(file_id=file_id, principal=self.principal)
            try:
                return open_file(row.sha256), row.size_bytes
            except FileNotFoundError:
                raise NotFound(f"The content of {row.file_id} is gone.", param="file_id") from None

        file, size_bytes = await sync_to_async(find)()
        response = StreamingHttpResponse(file_pieces(file), content_type="application/octet-stream")
        response["Content-Length"] = str(size_bytes)
        response["X-Content-Type-Options"] = "nosniff"
        response["Content-Disposition"] = f'attachment; filename="{file_id}.jsonl"'
        return response


def page_of(objects: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return OpenAI's list object of up to ``limit`` objects; one object more means a next page."""
    shown = objects[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }


def _form_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """Return the (purpose, seconds until expiry) of an upload.

    Raises:
        InvalidRequest: A field is wrong, missing or unknown.
    """
    known = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
    for name in fields:
        if name not in known:
            raise InvalidRequest(f"{name[:80]!r} is not a field of this form; remove it.", param=name[:80])
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("purpose is required.", param="purpose")
    if purpose not in UPLOAD_PURPOSES:
        raise InvalidRequest(
            f"purpose is {purpose[:40]!r}; it must be {' or '.join(UPLOAD_PURPOSES)}.", param="purpose"
        )
    if len(fields) == 1:
        return purpose, None
    seconds = fields.get("expires_after[seconds]", "")
    values = {
        "anchor": fields.get("expires_after[anchor]"),
        "seconds": int(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 12 else None,
    }
    return purpose, expiry_seconds(values, param="expires_after")


class FileContentOfPages(FileContentView):
    """/api/files/{id}/content: the same for pages of this site, which have a session instead of a key."""

    schema = None
    session_allowed = True
