"""Serve static files without a second server, compressed once, below an address that changes with their content.

``{% static %}`` writes ``/static/v-HASH/PATH``. HASH is one digest of all files, so that relative addresses in scripts
and stylesheets stay valid, and browsers may keep a file for a year. Other addresses are served too, and revalidated.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import mimetypes
import re
from pathlib import Path

from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseNotModified
from django.utils.http import http_date
from django.views.decorators.http import require_safe
from django.views.static import was_modified_since

_FOREVER = "public, max-age=31536000, immutable"
_MIN_COMPRESSED_BYTES = 512
_COMPRESSED = ("text/", "image/svg+xml", "application/json")
_VERSIONED = re.compile(r"v-([0-9a-f]{12})/(.+)", re.DOTALL)


@functools.cache
def files_version() -> str:
    """Return the digest of the names and contents of all static files; read once per process."""
    digest = hashlib.sha256()
    names = sorted(
        (name, storage.path(name)) for finder in finders.get_finders() for name, storage in finder.list(["*.map"])
    )
    for name, path in names:
        digest.update(name.encode() + b"\0" + hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()[:12]


class VersionedStorage(StaticFilesStorage):
    """Addresses of static files, with the version of all of them."""

    def url(self, name: str | None) -> str:
        """Return the address of a file, such as ``/static/v-0123456789ab/registry/app.css``."""
        return super().url(f"v-{files_version()}/{name}")


def static_file(request: HttpRequest, path: str) -> HttpResponse:
    """Return one file of an application's ``static`` directory.

    It is read whole: Django's own view streams it, which ASGI warns of with each file.

    Raises:
        Http404: There is no such file, or the path leads out of the directories.
    """
    version = None
    if found := _VERSIONED.fullmatch(path):
        version, path = found.groups()
    file = _find(path)
    changed_at = file.stat().st_mtime
    # A page of the version before may ask during an upgrade; what it gets then must not be kept.
    is_fixed = version == files_version()
    if is_fixed or was_modified_since(request.headers.get("If-Modified-Since"), changed_at):
        response = _content(file, "gzip" in request.headers.get("Accept-Encoding", ""))
    else:
        response = HttpResponseNotModified()
    response.headers["Last-Modified"] = http_date(changed_at)
    response.headers["Cache-Control"] = _FOREVER if is_fixed else "no-cache"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    """Return the icon where browsers and link previews look for it without having read a page."""
    response = static_file(request, "registry/favicon.ico")
    response.headers["Cache-Control"] = "public, max-age=86400"
    return response


def _content(file: Path, accepts_gzip: bool) -> HttpResponse:
    content_type, _ = mimetypes.guess_type(file.name)
    content_type = content_type or "application/octet-stream"
    is_text = content_type.startswith(_COMPRESSED)
    plain, compressed = _bytes(file, file.stat().st_mtime_ns, is_text)
    is_gzip = accepts_gzip and compressed is not None
    response = HttpResponse(compressed if is_gzip else plain, content_type=content_type)
    if is_gzip:
        response.headers["Content-Encoding"] = "gzip"
    if is_text:
        response.headers["Vary"] = "Accept-Encoding"
    response.headers["Content-Length"] = str(len(response.content))
    return response


@functools.lru_cache(maxsize=256)
def _bytes(file: Path, changed_at_ns: int, is_text: bool) -> tuple[bytes, bytes | None]:
    """Return a file's content, and its compressed form where that is shorter; kept until the file changes."""
    plain = file.read_bytes()
    if not is_text or len(plain) < _MIN_COMPRESSED_BYTES:
        return plain, None
    compressed = gzip.compress(plain, 9, mtime=0)
    return plain, compressed if len(compressed) < len(plain) else None


def _find(path: str) -> Path:
    try:
        found = finders.find(path)
    except (SuspiciousFileOperation, ValueError):  # ValueError: a path with a NUL
        found = None
    if not isinstance(found, str) or not Path(found).is_file():
        raise Http404("There is no such file.")
    return Path(found)
