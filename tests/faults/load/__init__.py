"""Many clients at once: what disconnects, slow readers, floods and limits do to a running server."""

LOG = "requests.log"
"""Name of the log of requests in a site's data directory, which ``tests.faults.load.pool`` describes."""
