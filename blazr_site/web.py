"""Run the web server: ``python -m blazr_site.web``, with the numbers of sockets that it inherits, if any."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence

import uvicorn
from django.conf import settings

from blazr_site.http_protocol import HttpProtocol, raise_file_limit
from blazr_site.listeners import BACKLOG, open_listeners
from blazr_site.process_environment import use_settings
from blazr_site.settings.storage import prepare_data_dir
from blazr_site.socket_protocol import WebSocketProtocol
from inference.errors import Unavailable
from inference.host.machine import share_one_arena

EXIT_NOT_STARTED = 3


def main(descriptors: Sequence[str]) -> int:
    """Serve until a signal.

    Args:
        descriptors: Numbers of bound sockets; none: the address of the settings is bound here.
    """
    share_one_arena()
    raise_file_limit()
    use_settings()
    prepare_data_dir()
    sockets = [socket.socket(fileno=int(number)) for number in descriptors]
    if not sockets:
        try:
            sockets = list(open_listeners(settings.BLAZR_HOST, settings.BLAZR_PORT))
        except Unavailable as error:
            sys.exit(f"error: {error.message}")
    config = uvicorn.Config(
        "blazr_site.asgi:application",
        http=HttpProtocol,
        loop="uvloop",
        ws=WebSocketProtocol,
        ws_max_size=settings.BLAZR_MAX_BODY_BYTES,
        ws_per_message_deflate=False,  # 16 KiB would become 16 MiB
        lifespan="on",
        timeout_graceful_shutdown=settings.BLAZR_DRAIN_GRACE_S,
        backlog=BACKLOG,
        access_log=False,
        server_header=False,
        log_level="warning",
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal of its shutdown again; the process has done what the signal asks for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Closed by the server at its drain, so that the kernel refuses new connections from then on.
    server.run(sockets)
    return 0 if server.started else EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
