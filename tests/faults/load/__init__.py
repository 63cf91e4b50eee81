"""Many clients at once: what disconnects, slow readers, floods and limits do to a running server."""
