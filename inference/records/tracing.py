"""Trace requests with OpenTelemetry, from the socket to the last token; off unless configured.

    POST /v1/…                web: from the request to the last byte of its response
      generation              web: from the checked request to its last event
        queue                 web: until a worker's engine has accepted every prompt
        worker                worker: from the message to its last event, one per prompt and attempt
          load                until its preparation begins: swap, load and turn; absent below SHORTEST_LOAD_S
          queue               until the engine takes the request, with its template and tokens
          prefill             until the first token
          decode              until the last token

The message carries the trace context (``traceparent``, https://www.w3.org/TR/trace-context/). Names of attributes:
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and …/http/http-spans/. opentelemetry is not imported
before ``tracing_start``. Its SDK reads the further OTEL_… variables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

    from inference.values.messages import GenerateMessage, GenerationEvent

SHORTEST_LOAD_S = 0.005
"""A shorter wait for the model gets no ``load`` span."""

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def current_request_id() -> str | None:
    """Return the id of this task's generation (the client's x-request-id), for log records."""
    return _request_id.get()


def set_current_request_id(request_id: str) -> None:
    """Set the id of this task's generation, for log records."""
    _request_id.set(request_id)


def tracing_start(*, service: str, processor: SpanProcessor | None = None) -> None:
    """Start tracing.

    Args:
        service: Service name of this process, unless OTEL_SERVICE_NAME is set.
        processor: Receives the spans; None: a thread sends them in batches to OTEL_EXPORTER_OTLP_ENDPOINT.
    """
    global _tracer, _provider
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if processor is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        processor = BatchSpanProcessor(OTLPSpanExporter())
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("blazr")


def tracing_stop() -> None:
    global _tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    _tracer = _provider = None


def is_tracing() -> bool:
    return _tracer is not None


def trace_id_current() -> str | None:
    """Return the id of this task's trace as 32 hexadecimal digits; None without a trace."""
    if _tracer is None:
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


class RequestSpan:
    """Context manager of one HTTP request's span, which is the current span in the block.

    Args:
        scope: The ASGI scope; its ``traceparent`` header continues the caller's trace.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self._span: Span | None = None
        self._token: Any = None

    def __enter__(self) -> RequestSpan:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        assert _tracer is not None
        names = (b"traceparent", b"tracestate")
        carrier = {
            name.decode(): value.decode("latin1") for name, value in self._scope.get("headers", ()) if name in names
        }
        parent = TraceContextTextMapPropagator().extract(carrier)
        method = self._scope["method"]
        self._span = _tracer.start_span(
            method,
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": self._scope["path"]},
        )
        self._token = context.attach(trace.set_span_in_context(self._span, parent))
        return self

    def record_status(self, status: int) -> None:
        from opentelemetry.trace import StatusCode

        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                self._span.set_status(StatusCode.ERROR)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        from opentelemetry import context

        if self._span is not None:
            if isinstance(error, Exception):
                self._span.record_exception(error)
            self._span.end()
            context.detach(self._token)


def route_set(route: str) -> None:
    """Name the request's span by its route; paths would give too many names."""
    if _tracer is None:
        return
    from opentelemetry import trace

    span = trace.get_current_span()
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    span.update_name(f"{attributes.get('http.request.method', '')} /{route}".strip())
    span.set_attribute("http.route", f"/{route}")


class GenerationTrace:
    """The span of one generation in the web process."""

    __slots__ = ("_span", "_started_ns")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._started_ns = time.time_ns()

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def end(
        self, *, outcome: str, queue_s: float, prompt_tokens: int, completion_tokens: int, is_accepted: bool
    ) -> None:
        """End the generation's span.

        Args:
            outcome: ``completed``, ``cancelled``, or an error's code.
            queue_s: Seconds until the engines had accepted every prompt, or until the end.
            prompt_tokens, completion_tokens: Usage of the generation.
            is_accepted: Whether the engines accepted every prompt.
        """
        from opentelemetry.trace import StatusCode

        _add_span(self._span, "queue", self._started_ns, self._started_ns + int(queue_s * 1e9))
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": prompt_tokens,
                "gen_ai.usage.output_tokens": completion_tokens,
                "blazr.outcome": outcome,
                "blazr.accepted": is_accepted,
            }
        )
        if outcome not in ("completed", "cancelled"):
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(StatusCode.ERROR, outcome)
        self._span.end()


def generation_trace(*, model: str, endpoint: str, request_id: str) -> GenerationTrace | None:
    """Start the span of a generation, a child of the request's span; None when tracing is off."""
    if _tracer is None:
        return None
    return GenerationTrace(
        _tracer.start_span(
            "generation",
            attributes={
                "gen_ai.operation.name": endpoint,
                "gen_ai.request.model": model,
                "blazr.request_id": request_id,
            },
        )
    )


def worker_trace(message: GenerateMessage, event: GenerationEvent, *, delivered_at: float) -> None:
    """Create the spans of a message that ends now, from the times in its last event.

    Args:
        message: The message of the web process.
        event: The last event of the request.
        delivered_at: ``time.monotonic()`` of the message's delivery.
    """
    traceparent = message.get("traceparent")
    if _tracer is None or traceparent is None:
        return
    from opentelemetry import trace
    from opentelemetry.trace import StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    end_ns = time.time_ns()
    start_ns = end_ns - int((time.monotonic() - delivered_at) * 1e9)
    span = _tracer.start_span(
        "worker",
        context=TraceContextTextMapPropagator().extract({"traceparent": traceparent}),
        kind=trace.SpanKind.CONSUMER,
        start_time=start_ns,
        attributes={"blazr.request_id": message["request_id"], "blazr.attempt": message["attempt"]},
    )
    usage = event.get("usage")
    if usage is not None:
        received_ns = end_ns - int(usage["duration_s"] * 1e9)
        taken_ns = received_ns + int(usage["queue_s"] * 1e9)
        first_ns = min(end_ns, max(taken_ns, received_ns + int(usage["ttft_s"] * 1e9)))
        if received_ns - start_ns > SHORTEST_LOAD_S * 1e9:
            _add_span(span, "load", start_ns, received_ns)
        _add_span(span, "queue", received_ns, taken_ns)
        cached = {"blazr.cached_tokens": usage["cached_tokens"], "gen_ai.usage.input_tokens": usage["prompt_tokens"]}
        _add_span(span, "prefill", taken_ns, first_ns, cached)
        _add_span(span, "decode", first_ns, end_ns, {"gen_ai.usage.output_tokens": usage["completion_tokens"]})
    if event["type"] == "error":
        span.set_attribute("error.type", str(event.get("error", {}).get("class", "EngineError")))
        span.set_status(StatusCode.ERROR)
    span.end(end_ns)


def _add_span(parent: Span, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Any] | None = None) -> None:
    from opentelemetry import trace

    if _tracer is not None:
        context = trace.set_span_in_context(parent)
        span = _tracer.start_span(name, context=context, start_time=start_ns, attributes=dict(attributes or {}))
        span.end(max(start_ns, end_ns))
