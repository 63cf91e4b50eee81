"""Check a batch's file for the pages of this site, before anything is queued."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from inference.api.base import ApiView, json_response
from inference.api.exception_handler import UnsupportedMediaType
from inference.api.paging import check_parameters
from inference.batches.file_check import CheckStopped, FileReport, check_file, check_place
from inference.errors import InvalidRequest
from inference.files.services import MIN_EXPIRY_S, file_create, file_object
from inference.files.store import READ_BYTES, FileWriter

CONTENT_TYPE = "application/octet-stream"


class BatchFileCheckOfPages(ApiView):
    """/api/batches/check: the bytes of a file as the body, with ``filename`` in the address.

    The body is no form, as the CSRF check of a session reads a whole form before the view can. Of a file that a batch
    would refuse nothing stays, and ``file`` is null. Any other file is stored for an hour; the page that queues it
    keeps it.
    """

    schema = None
    session_allowed = True

    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Check one file."""
        check_parameters(request, "filename")
        if request.content_type != CONTENT_TYPE:
            raise UnsupportedMediaType(
                f"The Content-Type is {(request.content_type or 'missing')[:80]!r}; send {CONTENT_TYPE}."
            )
        stopped = threading.Event()
        filename = request.GET.get("filename", "")[:255].replace("\0", "") or "batch.jsonl"

        def check() -> tuple[FileReport, dict[str, Any] | None]:
            with check_place(), contextlib.suppress(CheckStopped):
                return checked()
            return FileReport(), None  # for nobody

        def checked() -> tuple[FileReport, dict[str, Any] | None]:
            writer = FileWriter(settings.BLAZR_MAX_FILE_BYTES)
            try:
                while piece := request.read(READ_BYTES):
                    writer.write(piece)
                if not writer.size_bytes:
                    raise InvalidRequest("The file is empty.", param="file")
                writer.flush()
                with writer.path.open("rb") as file:
                    report = check_file(file, self.principal, stopped)
                if report.refusal_counts or stopped.is_set():
                    return report, None
                row = file_create(
                    writer=writer,
                    filename=filename,
                    purpose="batch",
                    tenant=self.principal.tenant,
                    expires_s=MIN_EXPIRY_S,
                )
                return report, file_object(row)
            finally:
                writer.discard()

        try:
            report, file = await sync_to_async(check)()
        except asyncio.CancelledError:  # the client has left; the thread goes on until it looks
            stopped.set()
            raise
        return json_response({"file": file, "report": report.to_dict()})
