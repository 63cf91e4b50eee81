"""Names and encodings of everything that web processes and workers share in Redis.

    m.<checkpoint>            list      Celery queue of one model; consumed by workers that hold the model
    blazr:flight:<checkpoint> zset      request ids of the model, queued or running; score: deadline
    blazr:holders:<checkpoint> zset     workers that hold (or load) the model; score: valid until
    blazr:asked:<checkpoint>  string    a load was requested a moment ago
    blazr:failures            hash      last load error per checkpoint as JSON, for people
    blazr:out:<web>           stream    events for one web process, one entry per engine step
    blazr:web:<web>           string    heartbeat of a web process
    blazr:w:<worker>          hash      heartbeat of a worker
    blazr:workers             zset      worker names; score: last heartbeat
    blazr:tags:<worker>       set       delivery tags that a worker holds unacknowledged
    blazr:ctl                 stream    cancel, unload, pin, unpin, ask, jobs: read by every worker
    blazr:answers:<question>  list      replies of the workers to a question, as JSON
    blazr:attempt:<request>   hash      n: deliveries after the first; suspects: those that followed a crash
    blazr:resume:<request>:<attempt> list  reply of a web process: the tokens that its client has
    blazr:limit:<tenant>      hash      token buckets of a tenant's limits: requests, tokens; at: when they were right
    blazr:open:<tenant>       zset      its open requests; score: end of their leases
    blazr:idem:<tenant>:<key> hash      a request under an idempotency key: its digest, its owner, then its response
    blazr:lines:<tenant>      zset      its submissions of lines under way, number:lines; score: end of their leases

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
UNACKED = "unacked"  # kombu's own, with its defaults
UNACKED_INDEX = "unacked_index"

MODEL_QUEUES = "m."
"""Begins the names of the models' queues."""

LUA_TAG_OF = """
local pattern = '"delivery_tag": ?"([^"]+)"'
local function tag_of(item)
  return string.match(string.sub(item, -160), pattern) or string.match(item, pattern)
end
"""
"""For scripts: ``tag_of(message)``, the delivery tag of a message in a queue, or nil; it stands near the end."""

CONTROL_MAX_ENTRIES = 10_000
OUT_MAX_ENTRIES = 20_000
OUT_EXPIRE_S = 3600
HEARTBEAT_EXPIRE_S = 15
HOLDER_EXPIRE_S = 15
ASKED_EXPIRE_S = 5
FAILED_EXPIRE_S = 900
ANSWERS_EXPIRE_S = 30
ATTEMPT_EXPIRE_S = 24 * 3600
RESUME_EXPIRE_S = 60

GENERATE_TASK = "inference.generate"
LOAD_TASK = "inference.load_model"
SWEEP_TASK = "inference.sweep_jobs"
WEBHOOKS_TASK = "inference.deliver_webhooks"
SWEEP_RESPONSES_TASK = "inference.sweep_responses"
REQUEST_LOG_SWEEP_TASK = "inference.sweep_request_log"
DEFAULT_QUEUE = "default"


def model_queue(checkpoint_id: str) -> str:
    """Celery queue of one model."""
    return f"{MODEL_QUEUES}{checkpoint_id}"


def flight(checkpoint_id: str) -> str:
    """Requests of a model that are queued or running."""
    return f"{PREFIX}flight:{checkpoint_id}"


def holders(checkpoint_id: str) -> str:
    """Workers that hold a model."""
    return f"{PREFIX}holders:{checkpoint_id}"


def asked(checkpoint_id: str) -> str:
    """Mark of a requested load."""
    return f"{PREFIX}asked:{checkpoint_id}"


def out(web_id: str) -> str:
    """Event stream of a web process."""
    return f"{PREFIX}out:{web_id}"


def web(web_id: str) -> str:
    """Heartbeat of a web process."""
    return f"{PREFIX}web:{web_id}"


def worker(worker_id: str) -> str:
    """Heartbeat of a worker."""
    return f"{PREFIX}w:{worker_id}"


def tags(worker_id: str) -> str:
    """Unacknowledged delivery tags of a worker."""
    return f"{PREFIX}tags:{worker_id}"


def answers(question_id: str) -> str:
    """Where workers put their replies to a question."""
    return f"{PREFIX}answers:{question_id}"


def attempt(request_id: str) -> str:
    """Delivery counters of a request."""
    return f"{PREFIX}attempt:{request_id}"


def limit_counters(tenant: str) -> str:
    """Token buckets of a tenant."""
    return f"{PREFIX}limit:{tenant}"


def limit_open(tenant: str) -> str:
    """Open requests of a tenant."""
    return f"{PREFIX}open:{tenant}"


def idempotency(tenant: str, key_digest: str) -> str:
    """A request under an idempotency key."""
    return f"{PREFIX}idem:{tenant}:{key_digest}"


def limit_lines(tenant: str) -> str:
    """Submissions of lines of a tenant that are under way."""
    return f"{PREFIX}lines:{tenant}"


def resume(request_id: str, attempt_number: int) -> str:
    """Where a web process puts what its client already has."""
    return f"{PREFIX}resume:{request_id}:{attempt_number}"


def pack(value: Any) -> bytes:
    """MessagePack; lone surrogates in text survive."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(payload: bytes) -> Any:
    """Read ``pack``'s form."""
    return msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)


def pack_events(events: Sequence[Any]) -> dict[Any, Any]:
    """Fields of a stream entry that carries events."""
    return {b"e": pack(events)}


def pack_resume_question(request_id: str, attempt_number: int) -> dict[Any, Any]:
    """Fields of a stream entry that asks which tokens the client of a request has."""
    return {b"q": pack([request_id, attempt_number])}


def failure_message(payload: bytes) -> str:
    """The message of a load error that a worker recorded."""
    return str(json.loads(payload)["error"]["message"])


def as_redelivered(envelope: bytes) -> bytes:
    """A Celery message, marked as delivered before, as kombu marks it."""
    message = json.loads(envelope)
    message["headers"]["redelivered"] = True
    message["properties"]["delivery_info"]["redelivered"] = True
    return json.dumps(message).encode()
