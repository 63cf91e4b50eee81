"""Generation: a request in flight, as the process that answers sees it.

It publishes one message per prompt, waits until every prompt was accepted, so that errors before that become a real
HTTP status, and then yields events; whoever stops listening, for whatever reason, cancels it. At its end it settles
limits, metrics, traces and usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from inference.access.admission import FREE, Admission
from inference.access.key_watch import key_watch
from inference.dialects.openai.outputs.base import AnswerFormat
from inference.dialects.openai.outputs.formats import answer_format
from inference.errors import BlazrError, GenerationFailed, ModelLoading
from inference.host.coroutines import run_all, run_in_background
from inference.records import log_context, metrics
from inference.records.request_log import contents_are_logged, log_request, logged_contents
from inference.records.tracing import generation_trace
from inference.records.usage import Usage, usage_now, usage_writer
from inference.transport.subscription import Inbox, Subscription
from inference.values.messages import GenerationEvent
from inference.values.output_builder import AnswerBuilder
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal
from inference.values.served_model import ServedModel

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 5.0
PUBLISH_CONCURRENCY = 16
"""Messages of one request on their way to the broker at once."""


@dataclass(frozen=True, slots=True)
class Surface:
    """An API that requests come through.

    Attributes:
        name: For metrics and usage records; at most 16 characters.
        id_prefix: Begins its request ids.
    """

    name: str
    id_prefix: str


class _Part:
    """One prompt of a request."""

    def __init__(self, number: int, request_id: str, subscription: Subscription) -> None:
        self.number = number
        self.request_id = request_id
        self.subscription = subscription
        self.is_published = False
        self.is_started = False
        self.is_finished = False


class Generation:
    """A request in flight.

    Attributes:
        surface: The API it came through.
        request_id: What the API calls it; its prompts are ``request_id`` or ``request_id-N`` for the workers.
        created: Unix time of its start.
        builder: What its events said so far.
        format: Arranges them.
        outcome: How it ended: ``completed``, ``cancelled``, or an error's code; None while it runs.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        principal: Principal,
        served: ServedModel,
        surface: Surface,
        admission: Admission = FREE,
    ) -> None:
        self.plan = plan
        self.principal = principal
        self.served = served
        self.surface = surface
        self.outcome: str | None = None
        self._admission = admission
        self.request_id = surface.id_prefix + secrets.token_hex(16)
        log_context.request_id.set(self.request_id)
        self._trace = generation_trace(model=served.name, endpoint=surface.name, request_id=self.request_id)
        self.created = int(time.time())
        self.builder = AnswerBuilder(plan, keep_text=not plan.stream or contents_are_logged())
        self.format: AnswerFormat = answer_format(
            plan, self.builder, request_id=self.request_id, created=self.created, model=served.name
        )
        self._arrived = time.monotonic()
        self._started: float | None = None
        self._deadline = self._arrived + settings.BLAZR_REQUEST_TIMEOUT_S
        self._parts: list[_Part] = []
        self._part_of: dict[str, _Part] = {}
        self._num_open = 0
        self._is_waiting = False
        self._followed_at = 0.0
        self._inbox = Inbox()
        self._early: list[tuple[int, list[GenerationEvent]]] = []
        self._error: BlazrError | None = None
        self._first_token_at: float | None = None
        self._last_token_at: dict[int, float] = {}
        self._is_closed = False
        self._active = metrics.child(metrics.ACTIVE, served.name)
        self._itl = metrics.child(metrics.ITL, served.name)
        self._generated = metrics.child(metrics.GENERATED_TOKENS, served.name)
        self._active.inc()

    # --- opening -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Publish all prompts and wait for their start events.

        Raises:
            BlazrError: A prompt was refused, or failed before its start.
        """
        from inference.transport.hub import get_hub
        from inference.transport.queue import publish_generation

        hub = get_hub()
        await hub.start()
        deadline = time.time() + settings.BLAZR_REQUEST_TIMEOUT_S
        room = asyncio.Semaphore(PUBLISH_CONCURRENCY)

        async def publish(part: _Part) -> None:
            async with room:
                message = self.plan.message(
                    part.number,
                    request_id=part.request_id,
                    web_id=hub.web_id,
                    checkpoint_id=self.served.checkpoint_id,
                    deadline=deadline,
                    tenant=self.principal.cache_tenant,
                    owner=self.principal.tenant,
                )
                if self._trace is not None:
                    message["traceparent"] = self._trace.traceparent
                # Set before: a publish that fails half-way may have reached the queue.
                part.is_published = True
                await publish_generation(message, part.subscription)

        for number in range(len(self.plan.prompts)):
            request_id = self.request_id if len(self.plan.prompts) == 1 else f"{self.request_id}-{number}"
            part = self._part_of[request_id] = _Part(number, request_id, hub.register(request_id, self._inbox))
            self._parts.append(part)
        self._num_open = len(self._parts)
        if len(self._parts) == 1:
            await publish(self._parts[0])
        else:
            await run_all(publish(part) for part in self._parts)
        while not all(part.is_started for part in self._parts):
            found = await self._next(self._deadline - time.monotonic())
            if found is None:
                raise ModelLoading(
                    f"The model {self.served.name!r} did not start on the request within "
                    f"{settings.BLAZR_REQUEST_TIMEOUT_S} s; try again later.",
                    param="model",
                    retry_after_s=30,
                )
            self._early.append(found)
            self._raise_error()
        self._started = time.monotonic()

    # --- following -----------------------------------------------------------------------------

    async def events(self, *, idle_s: float | None = None) -> AsyncGenerator[tuple[int, list[GenerationEvent]], None]:
        """(prompt number, its next events), until every prompt is done; then the generation is closed.

        Args:
            idle_s: Yield an empty list for prompt 0 when nothing came for so long; None: only wait.

        Raises:
            BlazrError: A prompt failed, or time is over; the other prompts are cancelled.
        """
        outcome = "cancelled"
        try:
            early, self._early = self._early, []
            for item in early:
                yield item
            while self._num_open:
                now = time.monotonic()
                left = self._deadline - now
                if left <= 0:
                    raise GenerationFailed(
                        f"The request did not end within {settings.BLAZR_REQUEST_TIMEOUT_S} s; "
                        "ask for fewer tokens, or queue it as a job."
                    )
                quiet_s = now - self._followed_at
                if idle_s is not None:
                    left = min(left, idle_s - quiet_s if quiet_s < idle_s else idle_s)
                found = await self._next(left)
                if found is not None:
                    yield found
                    self._raise_error()
                elif idle_s is not None and time.monotonic() - self._followed_at >= idle_s:
                    yield 0, []
            outcome = "completed"
        except BlazrError as error:
            outcome = error.code
            raise
        finally:
            if self._num_open:
                await asyncio.shield(run_in_background(self.close(outcome)))
            else:
                await self.close(outcome)  # nothing to cancel, so nothing to wait for

    async def answer(self) -> dict[str, Any]:
        """The whole answer.

        Raises:
            BlazrError: It failed.
        """
        await self.wait()
        return self.format.whole()

    async def wait(self) -> None:
        """Take in all events.

        Raises:
            BlazrError: It failed.
        """
        # aclosing: a cancelled task has to run the generator's end now, not when it is collected.
        async with contextlib.aclosing(self.events()) as events:
            async for _ in events:
                pass

    async def _next(self, timeout_s: float) -> tuple[int, list[GenerationEvent]] | None:
        """The next events of any prompt, taken into the builder; None: nothing came in time."""
        self._is_waiting = True
        try:
            subscription = await self._inbox.get(max(timeout_s, 0))
        finally:
            self._is_waiting = False
        if subscription is None:
            return None
        part = self._part_of[subscription.request_id]
        events = subscription.take()
        if not events:
            raise self._error or GenerationFailed("The server is stopping; send the request again.")
        for event in events:
            self._take(part, event)
        return part.number, events

    def follow(self, take: Callable[[GenerationEvent], None], can_take: Callable[[], bool]) -> None:
        """Pass deltas to ``take`` as they come, in place of ``events``, which only gets the others then.

        That spares a switch to the reader's task for each token. It is done while the reader has taken all that came
        before and ``can_take`` says yes, for requests of one choice; of several, what comes together goes out together.
        """
        if len(self._parts) != 1 or self.plan.params.n != 1:
            return
        part = self._parts[0]

        def take_delta(event: GenerationEvent) -> bool:
            if event["type"] != "delta" or not self._is_waiting or not can_take():
                return False
            self._followed_at = time.monotonic()
            self._take(part, event)
            try:
                take(event)
            except Exception:
                logger.exception("a part of %s could not be passed on", self.request_id)
                self.give_up(GenerationFailed("The answer could not be written because of an internal error."))
            return True

        part.subscription.follow(take_delta)

    def _take(self, part: _Part, event: GenerationEvent) -> None:
        self.builder.add(part.number, event)
        kind = event["type"]
        if kind == "delta":
            if num_tokens := len(event.get("token_ids", ())):
                self._count_tokens(part.number, num_tokens)
            return
        part.is_started = True
        if kind == "start" or part.is_finished:
            return
        part.is_finished = True
        self._num_open -= 1
        if kind == "error":
            # Raised once what came before it has been passed on.
            self._error = self._error or BlazrError.from_dict(event.get("error", {}))

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _count_tokens(self, number: int, num_tokens: int) -> None:
        now = time.monotonic()
        if self._first_token_at is None:
            self._first_token_at = now
            metrics.child(metrics.TTFT, self.served.name).observe(now - self._arrived)
        last = self._last_token_at.get(number)
        if last is not None:
            self._itl.observe((now - last) / num_tokens)
        self._last_token_at[number] = now
        self._generated.inc(num_tokens)

    # --- ending --------------------------------------------------------------------------------

    def give_up(self, error: BlazrError) -> None:
        """End it with ``error``, for a reason that isn't the workers'; they are told by ``close``."""
        self._error = self._error or error
        for part in self._parts:
            if not part.is_finished:
                part.subscription.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._is_closed

    async def close(self, outcome: str = "cancelled") -> None:
        """Cancel what still runs and settle the accounts; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.outcome = outcome
        if self.principal.key_id is not None:
            key_watch().remove(self)
        self._settle(outcome)
        unfinished = [part for part in self._parts if part.is_published and not part.is_finished]
        if unfinished:
            from inference.transport.control import cancel_generation

            async def cancel(part: _Part) -> None:
                try:
                    async with asyncio.timeout(CANCEL_TIMEOUT_S):
                        await cancel_generation(part.request_id)
                except (BlazrError, TimeoutError):
                    # The worker stops at the request's deadline then.
                    logger.warning("the cancellation of %s could not be sent", part.request_id)

            await asyncio.gather(*(cancel(part) for part in unfinished))
        for part in self._parts:
            part.subscription.close()

    def _settle(self, outcome: str) -> None:
        """Metrics and the usage record."""
        name, endpoint = self.served.name, self.surface.name
        duration_s = time.monotonic() - self._arrived
        queue_s = duration_s if self._started is None else self._started - self._arrived
        self._active.dec()
        metrics.child(metrics.REQUESTS, name, endpoint, outcome).inc()
        metrics.child(metrics.DURATION, name, endpoint).observe(duration_s)
        prompt_tokens, cached_tokens = self.builder.prompt_tokens, self.builder.cached_tokens
        completion_tokens = self.builder.completion_tokens
        self._admission.settle(tokens=prompt_tokens + completion_tokens)
        metrics.count_for_key(
            name,
            self.principal.kind,
            outcome,
            {"prompt": prompt_tokens, "cached": cached_tokens, "generated": completion_tokens},
        )
        if self._trace is not None:
            self._trace.end(
                outcome=outcome,
                queue_s=queue_s,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                is_accepted=self._started is not None,
            )
        if settings.BLAZR_LOG_REQUESTS:
            log_request(self, outcome=outcome, duration_s=duration_s, queue_s=queue_s)
        if prompt_tokens:
            metrics.child(metrics.PROMPT_TOKENS, name).inc(prompt_tokens)
            metrics.child(metrics.CACHED_TOKENS, name).inc(cached_tokens)
        if not prompt_tokens and not self.builder.completion_tokens:
            return
        usage_writer().offer(
            Usage(
                request_id=self.request_id,
                tenant=self.principal.tenant,
                endpoint=endpoint,
                model=name,
                outcome=outcome,
                prompt_tokens=prompt_tokens,
                completion_tokens=self.builder.completion_tokens,
                cached_tokens=cached_tokens,
                ttft_s=None if self._first_token_at is None else self._first_token_at - self._arrived,
                duration_s=duration_s,
                created_at=usage_now(),
                queue_s=queue_s,
                engine_s=duration_s - queue_s,
                **logged_contents(self.builder),
            )
        )
