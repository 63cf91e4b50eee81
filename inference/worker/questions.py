"""Questions on the control stream: what runs here, and whether a model would fit; answered from another thread."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError
from inference.transport import keys as redis_keys

logger = logging.getLogger(__name__)


class Manager(Protocol):
    """What is needed of ``inference.worker.model_manager.ModelManager``."""

    def requests(self) -> list[dict[str, Any]]:
        """The requests that are here."""
        ...

    def fit(self, checkpoint_id: str) -> dict[str, Any]:
        """Whether a model would fit."""
        ...


class Questions:
    """Answers to whoever asks.

    Args:
        client: For answers.
        worker_id: Signs them.
        manager: Knows.
    """

    def __init__(self, client: redis.Redis, worker_id: str, manager: Manager) -> None:
        self._client = client
        self._worker_id = worker_id
        self._manager = manager
        # A checkpoint's inspection takes a while to read; the control stream must not wait for that.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="questions")

    def take(self, subject: str) -> None:
        """One question: a JSON object with id, kind and perhaps checkpoint_id."""
        self._threads.submit(self._answer, json.loads(subject))

    def stop(self) -> None:
        """End the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"worker_id": self._worker_id}
        try:
            if question["kind"] == "requests":
                answer["requests"] = self._manager.requests()
            else:
                answer["fit"] = self._manager.fit(question["checkpoint_id"])
        except BlazrError as error:
            answer["error"] = error.to_dict()
        except Exception:
            logger.exception("the question %s could not be answered", question.get("kind"))
            return
        key = redis_keys.answers(question["id"])
        try:
            pipe: Any = self._client.pipeline(transaction=True)
            pipe.rpush(key, json.dumps(answer))
            pipe.expire(key, redis_keys.ANSWERS_EXPIRE_S)
            pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("an answer could not be sent (%s)", error)
