"""Report the usage of a generation: metrics, limits, trace, log line and usage record."""

from __future__ import annotations

import time

from django.conf import settings

from inference.access.admission import Admission
from inference.errors import EngineDead, EngineError, GenerationFailed, ModelLoadFailed, ModelLoading, OutOfCacheBlocks
from inference.records import metrics
from inference.records.phases import phases_text
from inference.records.request_log import log_request, logged_contents
from inference.records.tracing import GenerationTrace
from inference.records.usage import Usage, usage_now, usage_writer
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal

SERVER_ERRORS = frozenset(
    error.code for error in (EngineError, GenerationFailed, EngineDead, ModelLoading, ModelLoadFailed, OutOfCacheBlocks)
)
"""Requests that end so are recorded also without tokens, because an operator looks for them."""


class Accounting:
    """Measure one generation and report its usage at its end.

    Args:
        request_id: Id of the generation in the API.
        principal: The caller.
        model: The served name.
        endpoint: The API's name, for metrics and usage records.
        admission: The request's admission; ``finish`` reports the used tokens to it.
        trace: The generation's span; None when tracing is off.
        original: The request as it came; see ``logged_contents``.
    """

    def __init__(
        self,
        *,
        request_id: str,
        principal: Principal,
        model: str,
        endpoint: str,
        admission: Admission,
        trace: GenerationTrace | None,
        original: GenerationPlan | None = None,
    ) -> None:
        self._original = original
        self._request_id = request_id
        self._principal = principal
        self._model = model
        self._endpoint = endpoint
        self._admission = admission
        self._trace = trace
        self._arrived = time.monotonic()
        self._started: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at: dict[tuple[int, int], float] = {}
        self._between_tokens_s, self._num_between = 0.0, 0
        self._ended: float | None = None
        self._itl = metrics.child(metrics.ITL, model)
        self._generated = metrics.child(metrics.GENERATED_TOKENS, model)
        metrics.child(metrics.ACTIVE, model).inc()

    def start(self, accepted_at: float | None = None) -> None:
        """Record that the engines have accepted every prompt; ``accepted_at``: when, by ``time.monotonic``, or now."""
        self._started = time.monotonic() if accepted_at is None else max(self._arrived, accepted_at)

    def end(self) -> None:
        """Record that the last event has come from the workers; the client may still read."""
        self._ended = time.monotonic()

    @property
    def queue_s(self) -> float:
        """Seconds until the engines had accepted every prompt, or so far."""
        return (self._started or time.monotonic()) - self._arrived

    def count_tokens(self, number: int, num_tokens: int, choice: int = 0) -> None:
        """Count the tokens of one delta of prompt ``number``."""
        now = time.monotonic()
        if self._first_token_at is None:
            self._first_token_at = now
            metrics.child(metrics.TTFT, self._model).observe(now - self._arrived)
        last = self._last_token_at.get((number, choice))
        if last is not None:
            self._itl.observe((now - last) / num_tokens)
            self._between_tokens_s += now - last
            self._num_between += num_tokens
        self._last_token_at[number, choice] = now
        self._generated.inc(num_tokens)

    def finish(self, outcome: str, builder: OutputBuilder) -> None:
        """Report the end of the generation; call once.

        Args:
            outcome: ``completed``, ``cancelled``, or an error's code.
            builder: The output, with its token counts.
        """
        duration_s = time.monotonic() - self._arrived
        queue_s = duration_s if self._started is None else self._started - self._arrived
        prompt_tokens, cached_tokens = builder.prompt_tokens, builder.cached_tokens
        completion_tokens = builder.completion_tokens
        self._admission.release(tokens=prompt_tokens + completion_tokens)
        self._report_metrics(outcome, duration_s, prompt_tokens, cached_tokens, completion_tokens)
        if self._trace is not None:
            self._trace.end(
                outcome=outcome,
                queue_s=queue_s,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                is_accepted=self._started is not None,
            )
        usage = Usage(
            request_id=self._request_id,
            tenant=self._principal.tenant,
            endpoint=self._endpoint,
            model=self._model,
            outcome=outcome,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
            ttft_s=None if self._first_token_at is None else self._first_token_at - self._arrived,
            duration_s=duration_s,
            created_at=usage_now(),
            queue_s=queue_s,
            engine_s=duration_s - queue_s,
            itl_s=self._between_tokens_s / self._num_between if self._num_between else None,
            cache_outcome=builder.cache_outcome,
            requests=1 if prompt_tokens or completion_tokens else 0,
            phases=phases_text(builder.prompts, duration_s=duration_s, delivery_s=self._delivery_s()),
            **logged_contents(builder, self._original),
        )
        if settings.BLAZR_LOG_REQUESTS:
            log_request(usage)
        if usage.requests or outcome in SERVER_ERRORS:
            usage_writer().offer(usage)

    def _delivery_s(self) -> float:
        return 0.0 if self._ended is None else time.monotonic() - self._ended

    def _report_metrics(
        self, outcome: str, duration_s: float, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> None:
        model = self._model
        metrics.child(metrics.ACTIVE, model).dec()
        metrics.child(metrics.REQUESTS, model, self._endpoint, outcome).inc()
        metrics.child(metrics.DURATION, model, self._endpoint).observe(duration_s)
        if prompt_tokens:
            metrics.child(metrics.PROMPT_TOKENS, model).inc(prompt_tokens)
            metrics.child(metrics.CACHED_TOKENS, model).inc(cached_tokens)
        metrics.count_for_key(
            model,
            self._principal.kind,
            outcome,
            {"prompt": prompt_tokens, "cached": cached_tokens, "generated": completion_tokens},
        )
