"""The ASGI application: what it imports, which middleware runs where, who may open a WebSocket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter

from blazr_site.origin import SameOrigin

ROOT = Path(__file__).resolve().parents[2]


def _python(code: str, tmp_path: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "DJANGO_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"BLAZR_DATA_DIR": str(tmp_path / "data")}, cwd=ROOT,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_web_process_starts_without_torch(tmp_path):
    """And without the other heavy libraries that only workers need, in less than 100 MB of its own."""
    code = (
        "import sys, blazr_site.asgi; from pathlib import Path\n"
        "from django.urls import get_resolver; get_resolver().url_patterns\n"
        "heavy = {'torch', 'transformers', 'safetensors.torch', 'llguidance'} & set(sys.modules)\n"
        # ru_maxrss would count the process that forked this one; VmRSS has more or less of the libraries' files, which
        # processes share, by what lies in the page cache.
        "own_kib = int(Path('/proc/self/status').read_text().split('RssAnon:')[1].split()[0])\n"
        "print(sorted(heavy), own_kib < 100_000)"
    )
    assert _python(code, tmp_path) == "[] True"


def test_the_collector_leaves_what_the_web_process_has_loaded(tmp_path):
    """A full round would stop all streams for as long as it looks at every module."""
    code = (
        "import gc, sys, blazr_site.asgi\n"
        "print('inference.api.openai.views' in sys.modules, gc.get_freeze_count() > 10 * len(gc.get_objects()))"
    )
    assert _python(code, tmp_path) == "True True"


def test_command_line_help_needs_neither_django_nor_torch(tmp_path):
    code = (
        "import sys\nfrom blazr_site.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'django', 'celery'} & set(sys.modules)))"
    )
    assert _python(code, tmp_path).splitlines()[-1] == "[]"


def test_api_paths_run_without_middleware(tmp_path):
    code = (
        "from blazr_site.asgi import BareHandler; from django.conf import settings\n"
        "settings.MIDDLEWARE = ['nowhere.middleware']; print(type(BareHandler()).__name__)"
    )
    assert _python(code, tmp_path) == "BareHandler"


@pytest.mark.parametrize(
    ("headers", "wanted", "cookie"),
    [
        ({"host": "testserver", "origin": "http://testserver", "cookie": "a=b"}, True, True),
        ({"host": "testserver:8080", "origin": "http://testserver:8080", "cookie": "a=b"}, True, True),
        ({"host": "testserver", "origin": "https://proxied.example", "cookie": "a=b"}, True, True),
        ({"host": "testserver", "cookie": "a=b"}, True, False),
        ({"host": "testserver", "origin": "http://evil.example", "cookie": "a=b"}, False, None),
        ({"host": "testserver", "origin": "http://testserver:9999", "cookie": "a=b"}, False, None),
        ({"host": "testserver", "origin": "null", "cookie": "a=b"}, False, None),
        ({"host": "evil.example", "origin": "http://evil.example", "cookie": "a=b"}, False, None),
        ({"host": "testserver", "origin": "http://[", "cookie": "a=b"}, False, None),
        ({"cookie": "a=b"}, False, None),
    ],
)
async def test_websockets_open_for_own_pages_and_for_programs_without_cookies(settings, headers, wanted, cookie):
    settings.ALLOWED_HOSTS = ["testserver"] if "host" in headers else ["*"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://proxied.example"]
    seen: list[bool] = []

    async def app(scope, receive, send):
        seen.append(any(name == b"cookie" for name, _ in scope["headers"]))
        await receive()
        await send({"type": "websocket.accept"})

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "websocket", "path": "/v1/stream", "headers": raw}
    communicator = ApplicationCommunicator(SameOrigin(app), scope)
    await communicator.send_input({"type": "websocket.connect"})
    answer = await communicator.receive_output(1)
    assert answer["type"] == ("websocket.accept" if wanted else "websocket.close")
    assert seen == ([cookie] if wanted else [])


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1/stream/", "/v1/streams", "//", "/\n", "/console/live/x"])
async def test_a_websocket_of_no_path_is_refused_without_an_error(path):
    from blazr_site.asgi import SOCKETS

    communicator = ApplicationCommunicator(URLRouter(SOCKETS), {"type": "websocket", "path": path, "headers": []})
    await communicator.send_input({"type": "websocket.connect"})
    assert (await communicator.receive_output(10))["type"] == "websocket.close"
    await communicator.wait()
