"""Connect Celery to Redis, reconnect within seconds, and keep running requests when the connection is lost."""

from __future__ import annotations

from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis as redis_transport

MAX_RECONNECT_PAUSE_S = 2


class Channel(redis_transport.Channel):
    """Channel whose loss leaves running requests alone.

    Running requests go on without the connection: ``inference.worker.lease`` keeps their messages, and
    ``inference.transport.publisher`` acknowledges them. kombu would return the messages to their queues, or fail to and
    end the worker.
    """

    do_restore = False

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
