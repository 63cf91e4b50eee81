"""Find the server that a command of its owner works on, with a key."""

from __future__ import annotations

import argparse

from blazr_site.server_client import KEY_VARIABLE, SERVER_VARIABLE, Server, find_server
from blazr_site.settings.storage import BLAZR_DATA_DIR
from inference.errors import InvalidRequest


def server_with_key(arguments: argparse.Namespace, what: str) -> Server:
    """Return the server of ``--server``, of the environment, or that runs on the data directory.

    Args:
        what: What is to be done, for messages.

    Raises:
        InvalidRequest: There is none, or no key for it.
    """
    server = find_server(arguments.server, arguments.key, BLAZR_DATA_DIR)
    if server is None:
        raise InvalidRequest(f"no server runs on {BLAZR_DATA_DIR}; name one with --server URL or {SERVER_VARIABLE}.")
    if server.key is None:
        raise InvalidRequest(
            f"{what} needs an API key with the scope admin: --key or {KEY_VARIABLE}. The server's owner makes one with "
            "blazr key create NAME --scope admin."
        )
    return server
