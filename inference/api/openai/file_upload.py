"""Write multipart uploads directly into the file store, without a second copy, in constant memory."""

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
    """A parsed form: its only file, complete but not yet published, and its text fields."""

    writer: FileWriter
    filename: str
    fields: dict[str, str]


class _IntoStore(FileUploadHandler):
    """Receives the file's pieces from Django's parser."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self.writer: FileWriter | None = None
        self.filename = ""
        self.is_complete = False

    def new_file(self, field_name: str, file_name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a part with a file name."""
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
        """Write the next piece."""
        assert self.writer is not None
        self.writer.write(raw_data)

    def file_complete(self, file_size: int) -> None:
        """End the part; return None, so that ``request.FILES`` stays empty."""
        self.is_complete = True

    def discard(self) -> None:
        """Discard the received bytes."""
        if self.writer is not None:
            self.writer.discard()


def receive_file(request: HttpRequest, *, max_bytes: int) -> ReceivedFile:
    """Read a form with one file; call it in a thread.

    Raises:
        UnsupportedMediaType: The type isn't multipart/form-data.
        InvalidRequest: The form is malformed, or doesn't have exactly one file.
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
