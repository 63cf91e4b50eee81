"""Serve static files without a second server: Django finds them, the browser revalidates them.

``no-cache`` makes the browser revalidate each time; the response is 304 by Last-Modified. So a page never runs the
script of an older version, and collectstatic and hashed names aren't needed.
"""

from __future__ import annotations

from contextlib import closing

from django.contrib.staticfiles.views import serve
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase


def static_file(request: HttpRequest, path: str) -> HttpResponseBase:
    """Return one file of an application's ``static`` directory.

    Raises:
        Http404: There is no such file, or the path leads out of the directories.
    """
    try:
        response = serve(request, path, insecure=True)
    except SuspiciousFileOperation:  # Django would log a traceback
        raise Http404("There is no such file.") from None
    if response.streaming:  # Django warns of each file that it reads in the event loop; ours are small
        with closing(response):
            response = HttpResponse(b"".join(response), headers=dict(response.headers))
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
