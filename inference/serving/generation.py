"""Start generations, pass their events to a reader, and cancel abandoned ones.

``generation_start`` looks up the model, checks the request against the model and the caller's limits, and publishes
one message per prompt. It returns when every prompt was accepted, so that earlier errors become an HTTP status.
``Generation.deliver`` then passes the events to one reader, and ends the generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from channels.db import database_sync_to_async
from django.conf import settings

from inference.access.admission import FREE, Admission, admit
from inference.access.key_watch import key_watch
from inference.errors import BlazrError, GenerationFailed, ModelLoading, QueueFull, RequestTooLarge
from inference.host.coroutines import run_all, run_in_background
from inference.records.request_log import contents_are_logged
from inference.records.tracing import generation_trace, set_current_request_id
from inference.serving.accounting import Accounting
from inference.serving.full_queues import full_queues
from inference.serving.grammar_checks import grammar_checks
from inference.serving.image_parts import names_image_files, plan_with_images
from inference.serving.queue_watch import queue_watch
from inference.serving.served_models import plan_for_model, served_model_get
from inference.states.services import plan_with_state
from inference.transport.control import cancel_generation
from inference.transport.hub import get_hub
from inference.transport.open_requests import NoPlace
from inference.transport.queue import publish_generation
from inference.transport.subscription import Subscription
from inference.values.limits import estimate_tokens
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal
from inference.values.queue_place import QueuePlace
from inference.values.served_model import ServedModel

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 5.0
UNREPORTED_S = 0.25
"""Seconds for which a request waits before its stream begins with events about the queue."""
PUBLISH_CONCURRENCY = 16
"""Messages of one request that are published at the same time, at most."""


@dataclass(frozen=True, slots=True)
class ApiName:
    """An API that receives requests.

    Attributes:
        name: For metrics and usage records; at most 16 characters.
        id_prefix: Prefix of its request ids.
    """

    name: str
    id_prefix: str


_API_NAMES = {
    "completion": ApiName("completion", "cmpl-"),
    "chat": ApiName("chat", "chatcmpl-"),
    "embedding": ApiName("embedding", "embd-"),
}


class Reader(Protocol):
    """Takes the events of a generation."""

    def take(self, number: int, event: GenerationEvent) -> None:
        """Take an event of prompt ``number`` in the hub's task; must not wait.

        The generation's builder has the event already.
        """
        ...

    def end(self) -> None:
        """Record that no further event comes."""
        ...

    async def write(self) -> None:
        """Write the taken events; return when ``end`` was called and all events are written."""
        ...


class _WholeOutput:
    """Reader of a response that is sent as a whole."""

    def __init__(self, take: Callable[[int, GenerationEvent], object] | None) -> None:
        self._take = take
        self._end = asyncio.Event()

    def take(self, number: int, event: GenerationEvent) -> None:
        if self._take is not None:
            self._take(number, event)

    def end(self) -> None:
        self._end.set()

    async def write(self) -> None:
        await self._end.wait()


class _Prompt:
    """One prompt of a request."""

    def __init__(self, number: int, request_id: str) -> None:
        self.number = number
        self.request_id = request_id
        self.subscription: Subscription | None = None
        self.is_published = False
        self.is_started = False
        self.is_finished = False


class Generation:
    """A running request in the web process.

    Attributes:
        api_name: The API that received the request.
        request_id: Id of the request in the API. Workers know a single prompt by this id, prompt N of several by
            ``request_id-N``.
        created: Unix time of the start.
        builder: The output so far.
        outcome: ``completed``, ``cancelled``, or an error's code; None while the generation runs.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        principal: Principal,
        served: ServedModel,
        api_name: ApiName,
        admission: Admission = FREE,
        original: GenerationPlan | None = None,
    ) -> None:
        self.plan = plan
        self.principal = principal
        self.served = served
        self.api_name = api_name
        self.outcome: str | None = None
        self.request_id = api_name.id_prefix + secrets.token_hex(16)
        set_current_request_id(self.request_id)
        self.created = int(time.time())
        self._deadline = time.time() + settings.BLAZR_REQUEST_TIMEOUT_S
        self.builder = OutputBuilder(plan, keep_text=not plan.stream or contents_are_logged())
        self._trace = generation_trace(model=served.name, endpoint=api_name.name, request_id=self.request_id)
        self._accounting = Accounting(
            request_id=self.request_id,
            principal=principal,
            model=served.name,
            endpoint=api_name.name,
            admission=admission,
            trace=self._trace,
            original=original,
        )
        single = len(plan.prompts) == 1
        self._prompts = [
            _Prompt(number, self.request_id if single else f"{self.request_id}-{number}")
            for number in range(len(plan.prompts))
        ]
        self._num_unstarted = self._num_open = len(self._prompts)
        self._accepted_at = 0.0  # the engines have accepted the prompts that have started, by ``time.monotonic``
        self._held: list[tuple[int, GenerationEvent]] = []  # until there is a reader
        self._reader: Reader | None = None
        self._started = asyncio.Event()  # every prompt has started, or the request has failed
        self._has_ended = False
        self._error: BlazrError | None = None
        self._timer = asyncio.get_running_loop().call_later(settings.BLAZR_REQUEST_TIMEOUT_S, self._expire)

    # --- opening -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Publish all prompts and wait for their start events; for ``UNREPORTED_S`` if the plan includes the queue.

        Raises:
            BlazrError: A prompt was refused, or failed before its start.
        """
        await get_hub().start()
        if len(self._prompts) == 1:
            await self._publish(self._prompts[0])
        else:
            concurrency = asyncio.Semaphore(PUBLISH_CONCURRENCY)

            async def publish(prompt: _Prompt) -> None:
                async with concurrency:
                    await self._publish(prompt)

            await run_all(publish(prompt) for prompt in self._prompts)
        if self.plan.include_queue:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._started.wait(), UNREPORTED_S)
        else:
            await self._started.wait()
        self._raise_error()

    @property
    def is_waiting(self) -> bool:
        """Whether a prompt has not started, and the request has not failed."""
        return not self._started.is_set()

    async def wait_for_start(self, report: Callable[[QueuePlace | None], Awaitable[object]]) -> None:
        """Wait until every prompt has started, and report about once a second where the request stands.

        Args:
            report: Gets the place; None while it isn't known.

        Raises:
            BlazrError: A prompt failed before its start; the generation is closed then, as with any other exception.
        """
        try:
            waiting = next((prompt for prompt in self._prompts if not prompt.is_started), self._prompts[0])
            with queue_watch().watching(waiting.request_id, self.served.checkpoint_id) as watcher:
                ended = run_in_background(self._end_watch(watcher.end))
                try:
                    async for place in watcher.places():
                        await report(self._shown(place))
                finally:
                    ended.cancel()
            self._raise_error()
        except BaseException as error:
            outcome = error.code if isinstance(error, BlazrError) else "cancelled"
            await asyncio.shield(run_in_background(self.close(outcome)))
            raise

    def _shown(self, place: QueuePlace | None) -> QueuePlace | None:
        """Return the place without the name of a model that the caller's key isn't for."""
        allowed = self.principal.models
        if place is None or allowed is None or place.evicts in allowed:
            return place
        return replace(place, evicts="")

    async def _end_watch(self, end: Callable[[], object]) -> None:
        await self._started.wait()
        end()

    async def _publish(self, prompt: _Prompt) -> None:
        if self._has_ended:  # another prompt was refused meanwhile
            return
        hub = get_hub()
        message = self.plan.message(
            prompt.number,
            request_id=prompt.request_id,
            web_id=hub.web_id,
            checkpoint_id=self.served.checkpoint_id,
            deadline=self._deadline,
            owner=self.principal.tenant,
        )
        if self._trace is not None:
            message["traceparent"] = self._trace.traceparent
        prompt.subscription = hub.register(prompt.request_id, lambda event: self._take(prompt, event))
        # Set before the publish: a publish that fails may have reached the queue.
        prompt.is_published = True
        try:
            await publish_generation(message, prompt.subscription)
        except (QueueFull, RequestTooLarge) as error:
            # The prompt isn't in the queue, so no worker has to cancel it.
            prompt.is_published = False
            prompt.subscription.close()
            if isinstance(error, NoPlace):
                full_queues().record(self.plan.model, self.principal, error, served_name=self.served.name)
            raise

    # --- events --------------------------------------------------------------------------------

    async def deliver(self, reader: Reader) -> None:
        """Pass all events to ``reader`` until the generation has ended, then close it.

        Raises:
            BlazrError: A prompt failed or the request timed out; the other prompts are cancelled.
        """
        outcome = "cancelled"
        try:
            self._reader = reader
            held, self._held = self._held, []
            for number, event in held:
                reader.take(number, event)
            if self._has_ended:
                reader.end()
            await reader.write()
            self._raise_error()
            outcome = "completed"
        except BlazrError as error:
            outcome = error.code
            raise
        finally:
            if self._num_open:
                await asyncio.shield(run_in_background(self.close(outcome)))
            else:
                await self.close(outcome)  # nothing to cancel, so nothing to wait for

    async def wait(self, take: Callable[[int, GenerationEvent], object] | None = None) -> None:
        """Wait for the end, for a response that is sent as a whole.

        Args:
            take: Called with the prompt's number and each event; None when only the builder is read.

        Raises:
            BlazrError: The generation failed.
        """
        await self.deliver(_WholeOutput(take))

    def _take(self, prompt: _Prompt, event: GenerationEvent) -> None:
        """Take an event from the hub; must neither wait nor raise."""
        if self._has_ended:
            return
        kind = event["type"]
        if kind == "error":
            prompt.is_finished = True
            self._num_open -= 1
            self.give_up(BlazrError.from_dict(event.get("error", {})))
            return
        self.builder.add(prompt.number, event)
        if kind == "delta" and (num_tokens := len(event.get("token_ids", ()))):
            self._accounting.count_tokens(prompt.number, num_tokens, event.get("choice", 0))
        if self._reader is None:
            self._held.append((prompt.number, event))
        else:
            try:
                self._reader.take(prompt.number, event)
            except Exception:
                logger.exception("an event of %s could not be written", self.request_id)
                self.give_up(GenerationFailed("The output could not be written because of an internal error."))
                return
        if kind != "delta":
            self._advance(prompt, event, is_done=kind == "done")

    def _advance(self, prompt: _Prompt, event: GenerationEvent, *, is_done: bool) -> None:
        if not prompt.is_started:
            prompt.is_started = True
            self._accepted_at = max(self._accepted_at, time.monotonic() - event.get("accepted_ago_s", 0.0))
            self._num_unstarted -= 1
            if not self._num_unstarted:
                self._accounting.start(self._accepted_at)
                self._started.set()
        if is_done:
            prompt.is_finished = True
            self._num_open -= 1
            if not self._num_open:
                self._accounting.end()
                self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._started.set()
        if self._reader is not None:
            self._reader.end()

    def _expire(self) -> None:
        timeout_s = settings.BLAZR_REQUEST_TIMEOUT_S
        if self._started.is_set():
            self.give_up(
                GenerationFailed(
                    f"The request did not end within {timeout_s} s; request fewer tokens, or queue it as a job."
                )
            )
        else:
            self.give_up(
                ModelLoading(
                    f"The model {self.served.name!r} did not start on the request within {timeout_s} s; try again "
                    "later.",
                    param="model",
                    retry_after_s=30,
                )
            )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- ending --------------------------------------------------------------------------------

    def give_up(self, error: BlazrError) -> None:
        """End the generation with ``error``, and cancel its other prompts."""
        if self._has_ended:
            return
        self._error = error
        self._end()
        if self._num_open:
            run_in_background(self._cancel_unfinished())

    @property
    def waited(self) -> tuple[float, str]:
        """Seconds until every prompt had started, and the reason, ``swap``, ``load`` or ``capacity``; for the end."""
        waits = [prompt.usage.get("waits", {}) for prompt in self.builder.prompts if prompt.usage is not None]
        found = (name for name in ("swap", "load") if any(item.get(name, 0.0) > 0 for item in waits))
        reason = next(found, "capacity")
        return self._accounting.queue_s, reason

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self.outcome is not None

    async def close(self, outcome: str = "cancelled") -> None:
        """Cancel the unfinished prompts and report the usage; a second call does nothing."""
        if self.is_closed:
            return
        self.outcome = outcome
        self._timer.cancel()
        if self.principal.key_id is not None:
            key_watch().remove(self)
        self._accounting.finish(outcome, self.builder)
        self._end()
        await self._cancel_unfinished()

    async def _cancel_unfinished(self) -> None:
        if any(prompt.is_published for prompt in self._prompts):
            full_queues().forget(self.served.name)
        unfinished = [prompt for prompt in self._prompts if prompt.is_published and not prompt.is_finished]
        for prompt in unfinished:
            prompt.is_finished = True
            if prompt.subscription is not None:
                prompt.subscription.close()
        await asyncio.gather(*(_cancel(prompt.request_id) for prompt in unfinished))


async def _cancel(request_id: str) -> None:
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await cancel_generation(request_id)
    except (BlazrError, TimeoutError):
        # The worker then stops at the request's deadline. While Redis is away, the hub has said so once.
        logger.debug("the cancellation of %s could not be sent", request_id)


async def generation_start(
    *, plan: GenerationPlan, principal: Principal, api_name: ApiName | None = None
) -> Generation:
    """Send a request to the workers and wait until all of its prompts are accepted.

    Args:
        plan: The checked request.
        principal: The caller.
        api_name: The API that received the request; None: the plan's own endpoint.

    Returns:
        The running generation; the caller must call ``deliver``, ``wait`` or ``close``. If the plan includes the queue,
        it may wait still (``is_waiting``); then the caller calls ``wait_for_start`` first.

    Raises:
        UnknownModel: No model is served under this name.
        InvalidRequest: The model can't serve the request, or the worker refused the prompt.
        PermissionRefused: The key doesn't allow this model, priority or keep_alive.
        RateLimitExceeded: A limit of the key is reached.
        Unavailable: The queue is full, or the model was not ready in time.
    """
    principal.check_options(priority=plan.priority, keep_alive_s=plan.keep_alive_s)
    api_name = api_name or _API_NAMES[plan.endpoint]
    full_queues().check(plan.model, principal, endpoint=api_name.name)
    served = await served_model_get(name=plan.model)
    original, plan = plan, plan_for_model(plan, served)
    if names_image_files(plan.prompts):
        plan = await database_sync_to_async(plan_with_images)(plan, served, principal.tenant)
    else:
        plan = plan_with_images(plan, served, principal.tenant)
    if plan.state is not None:
        plan = await database_sync_to_async(plan_with_state)(plan, principal.tenant)
    admission = await admit(principal, tokens=estimate_tokens(plan))
    if plan.params.grammar is not None:
        # After the limits of the key: a refused request must cost no compilation.
        try:
            await grammar_checks().check(plan.params.grammar)
        except BaseException:
            admission.release(tokens=0)
            raise
    generation = Generation(plan.with_seed(), principal, served, api_name, admission, original)
    if principal.key_id is not None:
        key_watch().add(generation, principal.key_id)
    try:
        await generation.open()
    except BaseException as error:
        # A CancelledError means that the client has disconnected.
        outcome = error.code if isinstance(error, BlazrError) else "cancelled"
        await asyncio.shield(run_in_background(generation.close(outcome)))
        raise
    return generation
