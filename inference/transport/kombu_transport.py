"""Kombu's Redis transport with fewer round trips per message; what lies in Redis means the same to kombu.

Kombu makes a new Redis client for each message it takes and again for each that it acknowledges, goes around its event
loop for each, and acknowledges with a transaction of its own. Here one client stays. Of a model's queue one call takes
what waits besides the message that the blocking read gave, keeps it all, and notes it as this worker's (so the
lease thread needn't); the message itself is begun meanwhile. An acknowledgement of what ``EventPublisher`` has settled
already sends nothing. Measured in docs/decisions/0013-the-way-outside-the-network.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import time
from typing import Any

import kombu.transport
import orjson
from kombu.exceptions import DecodeError
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import base as virtual
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from inference.transport import keys as redis_keys

TAGS_EXPIRE_S = 3600
TAKEN_TOGETHER = 16
"""Messages that one call takes at most, besides the one that is there."""

# Keep the message that BRPOP gave, and take this worker's share of what waits behind it. KEYS: kombu's unacked and its
# index, the queue, the workers that read it, this worker's tags, the model's open requests. ARGV: now, how many may be
# taken, what kombu keeps behind a message, the first message's tag, itself, when the tags expire, and its request if it
# has been begun already: should that have ended, nothing is to be kept. A message that shows no tag is left to kombu.
_TAKE = (
    redis_keys.LUA_TAG_OF
    + """
local tags = {}
local function keep(tag, item)
  redis.call('ZADD', KEYS[2], ARGV[1], tag)
  redis.call('HSET', KEYS[1], tag, '[' .. item .. ARGV[3])
  tags[#tags + 1] = tag
end
if ARGV[7] == '' or redis.call('ZSCORE', KEYS[6], ARGV[7]) then keep(ARGV[4], ARGV[5]) end
local taken = {}
local waiting = redis.call('LLEN', KEYS[3])
if waiting > 0 then
  local workers = math.max(1, redis.call('ZCOUNT', KEYS[4], ARGV[1], '+inf'))
  for _ = 1, math.min(tonumber(ARGV[2]), math.ceil(waiting / workers)) do
    local item = redis.call('RPOP', KEYS[3])
    if not item then break end
    local tag = tag_of(item)
    if not tag then
      redis.call('RPUSH', KEYS[3], item)
      break
    end
    keep(tag, item)
    taken[#taken + 1] = item
  end
end
if KEYS[5] ~= '' and #tags > 0 then
  redis.call('SADD', KEYS[5], unpack(tags))
  redis.call('EXPIRE', KEYS[5], ARGV[6])
end
return taken
"""
)


class SettledTags:
    """Delivery tags whose end is recorded in Redis, until Celery acknowledges them too; thread-safe."""

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._lock = threading.Lock()

    def add(self, tags: Iterable[str]) -> None:
        """Note tags that are no longer in Celery's books."""
        with self._lock:
            self._tags.update(tags)

    def take(self, tag: str) -> bool:
        """Whether the tag was noted; it is forgotten."""
        with self._lock:
            if tag not in self._tags:
                return False
            self._tags.remove(tag)
            return True

    def clear(self) -> None:
        """Forget all; acknowledging twice does no harm."""
        with self._lock:
            self._tags.clear()


settled = SettledTags()
"""Of this process."""


class EngineQoS(kombu_redis.QoS):
    """The books of delivered messages."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Keep a message that was taken, and note whose it is: one round trip."""
        info = message.delivery_info
        kept = dumps(  # type: ignore[no-untyped-call]
            [message._raw, info["exchange"], info["routing_key"]]
        )
        worker_id = self.channel.worker_id
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
            pipe.hset(self.unacked_key, delivery_tag, kept)
            if worker_id is not None:
                key = redis_keys.tags(worker_id)
                pipe.sadd(key, delivery_tag)
                pipe.expire(key, TAGS_EXPIRE_S)
            pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]

    def ack(self, delivery_tag: str) -> None:
        """End a message; in Redis too, unless it has ended there."""
        if settled.take(delivery_tag):
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]
        else:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]


class ModelQueueMessage(virtual.Message):
    """A message of a model's queue: plain JSON, which needs none of kombu's types."""

    def _decode(self) -> Any:
        if self.content_type != "application/json" or (self.accept and self.content_type not in self.accept):
            return super()._decode()  # type: ignore[no-untyped-call]
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise DecodeError(str(error)) from error


class EngineChannel(kombu_redis.Channel):
    """A channel that keeps its client, and takes what waits in a model's queue together.

    Attributes:
        worker_id: Whose the taken messages are; None outside of a worker.
    """

    QoS = EngineQoS
    worker_id: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kept_client: Any = None
        self._take: Any = None
        settled.clear()
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        """Read a queue."""
        found = super().basic_consume(queue, no_ack, callback, *args, **kwargs)  # type: ignore[no-untyped-call]
        if queue.startswith(redis_keys.MODEL_QUEUES) and not no_ack:
            self.connection._callbacks[queue] = lambda raw: self._deliver_waiting(queue, callback, raw)
        return found

    def _deliver_waiting(self, queue: str, callback: Callable[[Any], Any], first: dict[str, Any]) -> None:
        """Deliver a message of a model's queue, and this worker's share of what waits there.

        A generation begins while Redis keeps its message. Should the call's answer be lost, what it took comes back
        like a killed worker's: nobody renews its time.
        """
        room = self.qos.can_consume_max_estimate()
        worker_id, checkpoint_id = self.worker_id, queue.removeprefix(redis_keys.MODEL_QUEUES)
        is_generation = first["headers"].get("task") == redis_keys.GENERATE_TASK
        keys = (
            self.unacked_key,
            self.unacked_index_key,
            queue,
            redis_keys.holders(checkpoint_id),
            "" if worker_id is None else redis_keys.tags(worker_id),
            redis_keys.flight(checkpoint_id),
        )
        arguments = (
            time(),
            TAKEN_TOGETHER if room is None else min(TAKEN_TOGETHER, max(room - 1, 0)),
            orjson.dumps(("", queue)).replace(b"[", b",", 1),
            first["properties"]["delivery_tag"],
            orjson.dumps(first),
            TAGS_EXPIRE_S,
            first["headers"]["id"] if is_generation else "",
        )
        with self.conn_or_acquire() as client:
            if self._take is None:
                self._take = client.register_script(_TAKE)
            with _answer_of(client, "EVALSHA", self._take.sha, len(keys), *keys, *arguments) as answer:
                if is_generation:
                    self._deliver(callback, first)
                taken = answer()
            if taken is None:
                taken = self._take(keys=keys, args=arguments, client=client)
        if not is_generation:
            self._deliver(callback, first)
        for raw in map(orjson.loads, taken):
            self._deliver(callback, raw)

    def _deliver(self, callback: Callable[[Any], Any], raw: dict[str, Any]) -> None:
        message = ModelQueueMessage(raw, channel=self)  # type: ignore[no-untyped-call]
        virtual.QoS.append(self.qos, message, message.delivery_tag)  # type: ignore[no-untyped-call]
        callback(message)

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client for a moment; redis-py's take their connections from a pool, in any thread."""
        if client:
            yield client
            return
        pool = self.pool
        if self._kept_client is None or self._kept_client.connection_pool is not pool:
            self._kept_client = self._create_client()  # type: ignore[no-untyped-call]
        yield self._kept_client


@contextmanager
def _answer_of(client: Any, *command: Any) -> Iterator[Callable[[], Any]]:
    """Send a command; the block calls what it gets for the answer, and has the time until then to itself.

    None in place of the answer: the connection was cut, or the server doesn't know the script.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    is_read = False

    def answer() -> Any:
        nonlocal is_read
        if not is_sent:
            return None
        try:
            found = connection.read_response()
        except NoScriptError:
            found = None
        except (RedisConnectionError, RedisTimeoutError):
            return None
        is_read = True
        return found

    try:
        try:
            connection.send_command(*command, check_health=False)
            is_sent = True
        except (RedisConnectionError, RedisTimeoutError):
            is_sent = False
        yield answer
    finally:
        if not is_read:
            connection.disconnect()
        pool.release(connection)


class EngineTransport(kombu_redis.Transport):
    """Kombu's transport with these channels."""

    Channel = EngineChannel


def use_in_this_process() -> None:
    """Let Redis addresses mean this transport; before the first connection."""
    for alias in ("redis", "rediss"):
        kombu.transport.TRANSPORT_ALIASES[alias] = f"{__name__}:{EngineTransport.__name__}"
