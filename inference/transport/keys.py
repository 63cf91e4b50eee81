r"""Names and encodings of everything that web processes and workers share in Redis.

    m.<checkpoint>            list      ids of a model's queued requests; workers that hold the model take them
    m.<checkpoint>:deferred   list      ids of deferred requests: taken when the other queues of the model are empty
    m.<checkpoint>:returned   list      ids of requests that a worker had before: taken first
    m.<checkpoint>:arrived    list      one element while requests are queued: it wakes one of the waiting workers
    blazr:messages            hash      messages of the open requests of all models, queued or held, as JSON
    blazr:messages:deadlines  zset      ids of these requests; score: deadline
    blazr:messages:origins    hash      model and caller of each of these requests
    blazr:messages:workers    hash      worker that has taken each of these requests; the others are queued
    blazr:messages:totals     hash      sums of these requests: numbers and bytes, by model and caller
    blazr:wake:<worker>       list      an element ends the wait of a worker for messages
    blazr:holders:<checkpoint> zset     workers that hold (or load) the model; score: valid until
    blazr:load_requested:<checkpoint> string  a load was requested in the last seconds
    blazr:failures            hash      last load error per checkpoint as JSON, for users
    blazr:out:<web>           stream    events for one web process, one entry per flush of a worker
    blazr:web:<web>           string    heartbeat of a web process
    blazr:w:<worker>          string    heartbeat of a worker: its state, as JSON
    blazr:workers             zset      worker names; score: last heartbeat
    blazr:alone:<worker>      string    the request that runs alone in a worker
    blazr:fenced:<worker>     string    peers have declared the worker dead and have taken its messages
    blazr:ctl                 stream    cancel, unload, pin, unpin, query, jobs: read by every worker
    blazr:replies:<query>     list      replies of the workers to a query, as JSON
    blazr:attempt:<request>   hash      n: deliveries after the first; the others: see ``crash_record``
    blazr:resume:<request>:<attempt> list  reply of a web process: the tokens that the request's client has
    blazr:limit:<tenant>      hash      token buckets of a tenant's limits: requests, tokens; at: the last refill
    blazr:open:<tenant>       zset      a tenant's open requests; score: end of their leases
    blazr:idem:<tenant>:<key> hash      a request under an idempotency key: its digest, its owner, then its response
    blazr:idem-kept           zset      bytes, key and tenant of each kept response; score: end of its time
    blazr:idem-totals         hash      bytes of kept responses: of each tenant, and of all

Standard library and msgpack only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgpack

PREFIX = "blazr:"
CONTROL_STREAM = f"{PREFIX}ctl"
WORKERS = f"{PREFIX}workers"
FAILURES = f"{PREFIX}failures"
MESSAGES = f"{PREFIX}messages"
OPEN_REQUESTS = f"{PREFIX}messages:deadlines"
OPEN_ORIGINS = f"{PREFIX}messages:origins"
MESSAGE_WORKERS = f"{PREFIX}messages:workers"
OPEN_TOTALS = f"{PREFIX}messages:totals"

MODEL_QUEUES = "m."
"""Prefix of the names of the models' queues."""
RETURNED = ":returned"
DEFERRED = ":deferred"
ARRIVED = ":arrived"
"""Ends of the names of a model's further keys."""

CONTROL_MAX_ENTRIES = 10_000
OUT_MAX_ENTRIES = 20_000
OUT_EXPIRE_S = 3600
HEARTBEAT_EXPIRE_S = 15
HEARTBEAT_FRESH_S = 8
"""A worker whose heartbeat is older isn't ready: readiness ends within 10 s."""
HOLDER_EXPIRE_S = 15
LOAD_REQUESTED_EXPIRE_S = 5
FAILED_EXPIRE_S = 900
REPLIES_EXPIRE_S = 30
ATTEMPT_EXPIRE_S = 24 * 3600
RESUME_EXPIRE_S = 60

IDEMPOTENCY_KEPT = f"{PREFIX}idem-kept"
IDEMPOTENCY_TOTALS = f"{PREFIX}idem-totals"

LOAD_TASK = "inference.load_model"
SWEEP_TASK = "inference.sweep_jobs"
WEBHOOKS_TASK = "inference.deliver_webhooks"
SWEEP_RESPONSES_TASK = "inference.sweep_responses"
REQUEST_LOG_SWEEP_TASK = "inference.sweep_request_log"
DEFAULT_QUEUE = "default"


def model_queue(checkpoint_id: str) -> str:
    """Return the key of a model's queue."""
    return f"{MODEL_QUEUES}{checkpoint_id}"


def model_queues(checkpoint_id: str) -> tuple[str, str, str]:
    """Return the keys of a model's queues, in the order in which workers take from them."""
    queue = model_queue(checkpoint_id)
    return f"{queue}{RETURNED}", queue, f"{queue}{DEFERRED}"


def arrived(checkpoint_id: str) -> str:
    """Return the key that has an element while requests of a model are queued."""
    return f"{model_queue(checkpoint_id)}{ARRIVED}"


def num_open_field(checkpoint_id: str) -> str:
    """Return the field of ``OPEN_TOTALS`` with the number of a model's open requests."""
    return f"requests:{checkpoint_id}"


def holders(checkpoint_id: str) -> str:
    """Return the key of the workers that hold a model."""
    return f"{PREFIX}holders:{checkpoint_id}"


def load_requested(checkpoint_id: str) -> str:
    """Return the key of the mark that a load was requested."""
    return f"{PREFIX}load_requested:{checkpoint_id}"


def out(web_id: str) -> str:
    """Return the key of a web process's event stream."""
    return f"{PREFIX}out:{web_id}"


def web(web_id: str) -> str:
    """Return the key of a web process's heartbeat."""
    return f"{PREFIX}web:{web_id}"


def worker(worker_id: str) -> str:
    """Return the key of a worker's heartbeat."""
    return f"{PREFIX}w:{worker_id}"


def wake(worker_id: str) -> str:
    """Return the key whose elements end a worker's wait for messages."""
    return f"{PREFIX}wake:{worker_id}"


def alone(worker_id: str) -> str:
    """Return the key of the request that runs alone in a worker."""
    return f"{PREFIX}alone:{worker_id}"


def fenced(worker_id: str) -> str:
    """Return the key of the mark that a worker was declared dead."""
    return f"{PREFIX}fenced:{worker_id}"


def replies(query_id: str) -> str:
    """Return the key of the workers' replies to a query."""
    return f"{PREFIX}replies:{query_id}"


def attempt(request_id: str) -> str:
    """Return the key of a request's delivery counters."""
    return f"{PREFIX}attempt:{request_id}"


def limit_counters(tenant: str) -> str:
    """Return the key of a tenant's token buckets."""
    return f"{PREFIX}limit:{tenant}"


def limit_open(tenant: str) -> str:
    """Return the key of a tenant's open requests."""
    return f"{PREFIX}open:{tenant}"


def idempotency(tenant: str, key_digest: str) -> str:
    """Return the key of a request under an idempotency key."""
    return f"{PREFIX}idem:{tenant}:{key_digest}"


def resume(request_id: str, attempt_number: int) -> str:
    """Return the key of a web process's reply with the tokens that a client has."""
    return f"{PREFIX}resume:{request_id}:{attempt_number}"


def pack(value: Any) -> bytes:
    """Encode a value as MessagePack; lone surrogates in text are kept."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(payload: bytes) -> Any:
    """Decode a value that ``pack`` encoded."""
    return msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)


def pack_events(events: Sequence[Any]) -> dict[Any, Any]:
    """Return the fields of a stream entry that carries events."""
    return {b"e": pack(events)}


def pack_failure(request_id: str, error: dict[str, Any]) -> dict[Any, Any]:
    """Return the fields of a stream entry that ends a request with an error, whatever attempt its client is at."""
    return {b"f": pack([request_id, error])}


def pack_resume_question(request_id: str, attempt_number: int) -> dict[Any, Any]:
    """Return the fields of a stream entry that queries which tokens a request's client has."""
    return {b"q": pack([request_id, attempt_number])}


def failure_message(payload: bytes) -> str:
    """Return the message of a load error that a worker recorded."""
    return str(json.loads(payload)["error"]["message"])
