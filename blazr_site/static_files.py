"""Serve static files without a second server: Django finds them, the browser revalidates them.

``no-cache`` makes the browser revalidate each time; the response is 304 by Last-Modified. So a page never runs the
script of an older version, and collectstatic and hashed names aren't needed.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path

from django.contrib.staticfiles import finders
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseNotModified
from django.utils.http import http_date
from django.views.static import was_modified_since


def static_file(request: HttpRequest, path: str) -> HttpResponse:
    """Return one file of an application's ``static`` directory.

    It is read whole: Django's own view streams it, which ASGI warns of with each file.

    Raises:
        Http404: There is no such file, or the path leads out of the directories.
    """
    file = _find(path)
    changed_at = file.stat().st_mtime
    if was_modified_since(request.headers.get("If-Modified-Since"), changed_at):
        content_type, _ = mimetypes.guess_type(file.name)
        response = HttpResponse(file.read_bytes(), content_type=content_type or "application/octet-stream")
        response.headers["Content-Length"] = str(len(response.content))
    else:
        response = HttpResponseNotModified()
    response.headers["Last-Modified"] = http_date(changed_at)
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _find(path: str) -> Path:
    try:
        found = finders.find(path)
    except (SuspiciousFileOperation, ValueError):  # ValueError: a path with a NUL
        found = None
    if not isinstance(found, str) or not Path(found).is_file():
        raise Http404("There is no such file.")
    return Path(found)
