"""Connect Celery to Redis, reconnect within seconds, and keep running tasks when the connection is lost."""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis as redis_transport
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

logger = logging.getLogger(__name__)

MAX_RECONNECT_PAUSE_S = 2


class Channel(redis_transport.Channel):
    """Channel whose loss leaves running tasks alone.

    kombu would return their messages to the queues, or fail to and end the worker.

    A Redis that replies but takes no writes, because its memory or its disk is full, counts as one that can't be
    reached: kombu would lose the messages that it reads, and Celery would reconnect without a pause.

    Raises:
        redis.exceptions.ConnectionError: Redis takes no writes.
    """

    do_restore = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        try:
            # Adds nothing, and is refused as any write is.
            self.client.zadd(self.unacked_index_key, {"": 0}, xx=True)
        except ResponseError as error:
            self.close()  # type: ignore[no-untyped-call]
            raise RedisConnectionError(f"Redis takes no writes: {error}") from error

    def _brpop_read(self, **options: Any) -> Any:
        """Read and deliver the next message; drop one that isn't Celery's, which would end the worker."""
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, Empty):
            raise
        except Exception as error:
            logger.error("a message that can't be read is dropped: %r", error)
            return True

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, unless the connection that delivered it is gone."""
        if self.connection is not None and self.connection.client is not None:
            super().basic_ack(delivery_tag, multiple=multiple)  # type: ignore[no-untyped-call]


class Transport(redis_transport.Transport):
    """kombu's transport with ``Channel``."""

    Channel = Channel


class BrokerConnection(Connection):
    """Connection that reconnects within seconds of the broker's return.

    Celery passes no pauses, and kombu's default grows to half a minute.
    """

    def get_transport_cls(self) -> type[Transport]:
        """Return the transport, whatever the notation of the address."""
        return Transport

    def ensure_connection(self, *args: Any, **kwargs: Any) -> BrokerConnection:
        """Connect, with short pauses between the attempts."""
        pauses = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": MAX_RECONNECT_PAUSE_S}
        found: BrokerConnection = super().ensure_connection(*args, **{**pauses, **kwargs})  # type: ignore[no-untyped-call]
        return found


class Broker(AMQP):  # type: ignore[misc]
    """Celery's access to the broker, over ``BrokerConnection``."""

    Connection = BrokerConnection
