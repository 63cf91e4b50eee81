"""Push a checkpoint to a server by the uploads of its registry: declare, send in pieces, resume, await the check."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from blazr_site.server_client import RefusedByServer, ServerClient, quoted
from inference.errors import BlazrError, InvalidRequest, Unavailable
from inference.host.cache_folder import cache_folder
from models_registry.upload_rules import MAX_FILES, WEIGHT_SUFFIXES, DeclaredFile, check_declaration, is_accepted

MAX_ATTEMPTS = 6
"""Attempts to send one piece; the pauses between them double from one second on."""
POLL_S = 0.5
MAX_BYTES = 1 << 62
_READ_BYTES = 1 << 20

T = TypeVar("T")

Report = Callable[[str, int, int], None]
"""Gets what is being done, the bytes that are done, and those of all files."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to push."""

    path: Path
    size_bytes: int
    mtime_ns: int
    sha256: str = ""

    @property
    def declared(self) -> DeclaredFile:
        """The file as the server is told of it."""
        return DeclaredFile(self.path.name, self.size_bytes, self.sha256)


def files_to_push(place: Path) -> tuple[list[LocalFile], list[str]]:
    """Return the files of a checkpoint, and the names of files that a server doesn't take.

    Args:
        place: A directory, or a single weight file.

    Raises:
        InvalidRequest: There is no such checkpoint.
        BlazrError: The server would refuse the files, whatever its limits are.
    """
    if not place.exists():
        raise InvalidRequest(f"{place} doesn't exist; give a checkpoint's directory or its weight file.", param="dir")
    found = [place] if place.is_file() else sorted(entry for entry in place.iterdir() if entry.is_file())
    taken = [path for path in found if is_accepted(path.name)]
    if any(path.name.startswith("model") and path.suffix == ".safetensors" for path in taken):
        taken = [path for path in taken if not path.name.startswith("consolidated")]  # the weights once more
    if not any(path.name.endswith(WEIGHT_SUFFIXES) for path in taken):
        raise InvalidRequest(
            f"{place} has no weights at its top level; a server takes {', '.join(WEIGHT_SUFFIXES)}.", param="dir"
        )
    files = []
    for path in taken[: MAX_FILES + 1]:
        status = path.stat()
        files.append(LocalFile(path, status.st_size, status.st_mtime_ns))
    check_declaration([file.declared for file in files], max_bytes=MAX_BYTES)
    return files, sorted({path.name for path in found} - {path.name for path in taken})


def with_digests(files: Sequence[LocalFile], report: Report) -> list[LocalFile]:
    """Read all files, and return them with their SHA-256."""
    total, done, found = sum(file.size_bytes for file in files), 0, []
    for file in files:
        digest = hashlib.sha256()
        with file.path.open("rb") as content:
            while piece := content.read(_READ_BYTES):
                digest.update(piece)
                done += len(piece)
                report(f"reading {file.path.name}", done, total)
        found.append(LocalFile(file.path, file.size_bytes, file.mtime_ns, digest.hexdigest()))
    return found


class Push:
    """One checkpoint on its way to one server.

    A push that was interrupted goes on in a later process: the upload's id is in the user's cache folder.

    Args:
        name: Served name; empty: made from the label by the server.
        label: Name of the directory.
    """

    def __init__(self, client: ServerClient, files: Sequence[LocalFile], *, name: str, label: str) -> None:
        self._client = client
        self._files = files
        self._name = name
        self._label = label
        order = [client.server.url, name, label, *(file.sha256 for file in files)]
        self._memory = cache_folder("pushes") / f"{hashlib.sha256(json.dumps(order).encode()).hexdigest()}.json"

    def run(self, report: Report) -> dict[str, Any]:
        """Send what the server lacks, let it check the files, and return the finished upload.

        Raises:
            BlazrError: The server refused the files, or couldn't be reached for too long.
        """
        upload = self._resumed() or self._created()
        if upload["state"] == "receiving":
            self._send(upload, report)
            upload = self._again(lambda: self._client.json("POST", f"{_path(upload)}/finish"))
        total, place = upload["size_bytes"], _path(upload)
        while upload["state"] in ("receiving", "checking"):
            report(f"the server checks: {upload['stage']}", total, total)
            time.sleep(POLL_S)
            # Complete, but not being checked: the server was stopped meanwhile.
            finishes = upload["state"] == "receiving"
            request = ("POST", f"{place}/finish") if finishes else ("GET", place)
            upload = self._again(partial(self._client.json, *request))
        self._forget()
        if upload["state"] != "done":
            raise InvalidRequest(f"the server has refused the checkpoint: {upload['reason'] or upload['state']}")
        return upload

    def _created(self) -> dict[str, Any]:
        body = {
            "served_model_name": self._name,
            "label": self._label,
            "files": [asdict(file.declared) for file in self._files],
        }
        upload: dict[str, Any] = self._client.json("POST", "/registry/uploads", body)
        with suppress(OSError):  # without it, an interrupted push begins again
            self._memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._memory.write_text(json.dumps({"id": upload["id"]}))
        return upload

    def _resumed(self) -> dict[str, Any] | None:
        """Return the upload of an earlier process, if the server still has it open."""
        try:
            upload_id = str(json.loads(self._memory.read_text())["id"])
            upload: dict[str, Any] = self._client.json("GET", f"/registry/uploads/{quoted(upload_id)}")
        except (OSError, ValueError, KeyError, TypeError):
            return None
        except RefusedByServer as error:
            if error.status != 404:
                raise
            return None
        declared = [(file["name"], file["size_bytes"], file["sha256"]) for file in upload["files"]]
        here = [(file.path.name, file.size_bytes, file.sha256) for file in self._files]
        return upload if upload["state"] in ("receiving", "checking") and declared == here else None

    def _send(self, upload: dict[str, Any], report: Report) -> None:
        sent, total = sum(file["received_bytes"] for file in upload["files"]), upload["size_bytes"]
        for number, (file, row) in enumerate(zip(self._files, upload["files"], strict=True)):
            report(f"sending {file.path.name}", sent, total)
            for size in self._send_file(upload, number, file, row["received_bytes"]):
                sent += size
                report(f"sending {file.path.name}", sent, total)

    def _send_file(self, upload: dict[str, Any], number: int, file: LocalFile, offset: int) -> Iterator[int]:
        """Send the rest of a file; yields the bytes of each piece."""
        with file.path.open("rb") as content:
            while offset < file.size_bytes:
                content.seek(offset)
                piece = content.read(min(upload["chunk_bytes"], file.size_bytes - offset))
                if not piece:
                    raise InvalidRequest(f"{file.path} became shorter while it was sent; push it again.")
                received = self._send_piece(upload, number, offset, piece)
                yield received - offset
                offset = received

    def _send_piece(self, upload: dict[str, Any], number: int, offset: int, piece: bytes) -> int:
        """Send a piece; returns the bytes that the server has of the file then."""
        place = f"{_path(upload)}/files/{number}"

        def send() -> int:
            try:
                row = self._client.json("PUT", f"{place}?offset={offset}", content=piece)
            except RefusedByServer as error:
                if error.status != 409:
                    raise
                # The reply to an earlier attempt was lost, so the server may have the piece.
                row = self._client.json("GET", _path(upload))["files"][number]
                if row["received_bytes"] == offset:
                    raise
            return int(row["received_bytes"])

        return self._again(send)

    def _again(self, request: Callable[[], T]) -> T:
        """Send a request, several times while the server can't be reached or is overloaded."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                return request()
            except BlazrError as error:
                is_passing = isinstance(error, Unavailable) or getattr(error, "status", 0) in (408, 429, 502, 503, 504)
                if not is_passing or attempt == MAX_ATTEMPTS - 1:
                    raise
            time.sleep(2**attempt)
        raise AssertionError

    def _forget(self) -> None:
        with suppress(OSError):
            self._memory.unlink()


def _path(upload: dict[str, Any]) -> str:
    return f"/registry/uploads/{upload['id']}"
