"""Multipart uploads straight into the file store: no second copy, no memory by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler, StopFutureHandlers
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from inference.api.exception_handler import UnsupportedMediaType
from inference.errors import InvalidRequest
from inference.files.store import FileWriter


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A parsed form: its one file, complete and not yet published, and its text fields."""

    writer: FileWriter
    filename: str
    fields: dict[str, str]


class _IntoStore(FileUploadHandler):
    """Django's parser hands the file's pieces over here."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self.writer: FileWriter | None = None
        self.filename = ""
        self.is_complete = False

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        """A part with a file name begins."""
        if field_name != "file":
            raise InvalidRequest(
                f"the form has a file under {field_name[:60]!r}; send one file, under 'file'.", param=field_name[:60]
            )
        if self.writer is not None:
            raise InvalidRequest("the form has several files; send one.", param="file")
        self.filename = file_name
        self.writer = FileWriter(self._max_bytes)
        raise StopFutureHandlers

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """The next piece."""
        assert self.writer is not None
        self.writer.write(raw_data)

    def file_complete(self, file_size: int) -> None:
        """The part ended; nothing goes into ``request.FILES``."""
        self.is_complete = True

    def discard(self) -> None:
        """Forget what came."""
        if self.writer is not None:
            self.writer.discard()


def receive_file(request: HttpRequest, *, max_bytes: int) -> ReceivedFile:
    """Read a form with one file; call it in a thread.

    Raises:
        UnsupportedMediaType: Not multipart/form-data.
        InvalidRequest: Broken, without a file, or with several.
        RequestTooLarge: The file has more than ``max_bytes``.
    """
    if request.content_type != "multipart/form-data":
        raise UnsupportedMediaType(
            f"The Content-Type is {(request.content_type or 'missing')[:80]!r}; send multipart/form-data."
        )
    handler = _IntoStore(max_bytes)
    request.upload_handlers = [handler]
    try:
        fields = {name: str(values[-1]) for name, values in request.POST.lists()}
        if handler.writer is None or not handler.is_complete:
            raise InvalidRequest("file is required: a part of the form with a file name.", param="file")
        if handler.writer.size_bytes == 0:
            raise InvalidRequest("file is empty.", param="file")
        return ReceivedFile(handler.writer, handler.filename[:255], fields)
    except (MultiPartParserError, SuspiciousOperation) as error:
        handler.discard()
        raise InvalidRequest(f"The form can't be read: {str(error).rstrip('.')[:200]}.") from None
    except BaseException:
        handler.discard()
        raise
