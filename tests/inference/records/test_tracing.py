"""Traces: spans of a request in web and worker, one tree, sent to a collector that is really listened to."""

from __future__ import annotations

import itertools
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from inference.errors import GenerationFailed
from inference.records import tracing

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def spans():
    """Finished spans of this process, as they end."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    tracing.tracing_start(service="test", processor=SimpleSpanProcessor(exporter))
    yield exporter
    tracing.tracing_stop()


def finished(exporter: Any, *names: str) -> dict[str, Any]:
    """Spans by name, once all of ``names`` have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = {span.name: span for span in exporter.get_finished_spans()}
        if set(names) <= set(found):
            return found
        time.sleep(0.02)
    raise AssertionError(f"there are only {sorted(found)}")


def worker_trace(message, event, *, age_s: float) -> None:
    """Trace a request that was delivered so many seconds before its event; no time passes meanwhile."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now)
        tracing.worker_trace(message, event, delivered_at=now - age_s)


def test_nothing_is_traced_and_nothing_imported_unless_it_is_switched_on():
    import subprocess
    import sys

    assert not tracing.is_tracing()
    assert tracing.generation_trace(model="m", endpoint="chat", request_id="r") is None
    assert tracing.trace_id_current() is None
    code = "import sys, inference.records.tracing; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_request_is_one_tree_below_the_callers_span(live_url, worker, spans):
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    with httpx.Client(base_url=live_url, timeout=60) as http:
        answer = http.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
    assert answer.text.endswith("data: [DONE]\n\n")
    found = finished(spans, "POST /v1/chat/completions", "generation", "queue")
    request, generation, queue = (found[name] for name in ("POST /v1/chat/completions", "generation", "queue"))
    assert f"{request.context.trace_id:032x}" == TRACE_ID
    assert f"{request.parent.span_id:016x}" == PARENT_ID
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == "/v1/chat/completions"
    assert generation.parent.span_id == request.context.span_id
    assert queue.parent.span_id == generation.context.span_id
    assert generation.attributes["gen_ai.request.model"] == "tiny"
    assert generation.attributes["gen_ai.usage.output_tokens"] == 2
    assert generation.attributes["blazr.request_id"] == answer.headers["x-request-id"]
    assert generation.attributes["blazr.outcome"] == "completed"
    assert request.start_time <= generation.start_time <= generation.end_time <= request.end_time
    assert worker.messages[-1]["traceparent"] == f"00-{TRACE_ID}-{generation.context.span_id:016x}-01"


def test_without_tracing_messages_carry_nothing(live_url, worker):
    with httpx.Client(base_url=live_url, timeout=60) as http:
        http.post("/v1/chat/completions", json=CHAT, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
    assert "traceparent" not in worker.messages[-1]


def test_failures_are_marked(live_url, worker, spans):
    def failing(reply):
        yield reply.start()
        yield reply.error(GenerationFailed("broken"))

    worker.script = failing
    with httpx.Client(base_url=live_url, timeout=60) as http:
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 500
        assert http.get("/livez").status_code == 200
    found = finished(spans, "POST /v1/chat/completions", "generation")
    assert found["generation"].attributes["error.type"] == "generation_failed"
    assert not found["generation"].status.is_ok
    assert not found["POST /v1/chat/completions"].status.is_ok
    assert not any("livez" in name for name in found)


def _message() -> dict[str, Any]:
    return {"request_id": "r", "attempt": 1, "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


def test_a_worker_splits_its_time_into_load_queue_prefill_and_decode(spans):
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 4}
    times = {"queue_s": 0.5, "ttft_s": 2.0, "duration_s": 5.0}
    event = {"request_id": "r", "attempt": 1, "index": 9, "type": "done", "usage": usage | times}
    worker_trace(_message(), event, age_s=8.0)
    found = finished(spans, "worker")
    lengths = {name: round((span.end_time - span.start_time) / 1e9, 1) for name, span in found.items()}
    assert lengths == {"worker": 8.0, "load": 3.0, "queue": 0.5, "prefill": 1.5, "decode": 3.0}
    assert f"{found['worker'].parent.span_id:016x}" == PARENT_ID
    assert f"{found['decode'].context.trace_id:032x}" == TRACE_ID
    assert found["prefill"].attributes["blazr.cached_tokens"] == 4
    ordered = [found[name] for name in ("load", "queue", "prefill", "decode")]
    assert all(span.parent.span_id == found["worker"].context.span_id for span in ordered)
    assert all(one.end_time == other.start_time for one, other in itertools.pairwise(ordered))


def test_a_worker_that_fails_or_had_the_model_says_so(spans):
    error = {"request_id": "r", "attempt": 1, "index": 0, "type": "error", "error": {"class": "PromptTooLong"}}
    tracing.worker_trace(_message(), error, delivered_at=time.monotonic())
    assert finished(spans, "worker")["worker"].attributes["error.type"] == "PromptTooLong"
    spans.clear()
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0, "queue_s": 0.0, "ttft_s": 0.1}
    event = {"request_id": "r", "attempt": 1, "index": 1, "type": "done", "usage": {**usage, "duration_s": 0.2}}
    worker_trace(_message(), event, age_s=0.2)
    assert set(finished(spans, "worker")) == {"worker", "queue", "prefill", "decode"}
    spans.clear()
    tracing.worker_trace({"request_id": "r", "attempt": 0}, event, delivered_at=time.monotonic())
    assert spans.get_finished_spans() == ()


def test_spans_reach_a_collector(monkeypatch):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    try:
        tracing.tracing_start(service="blazr-web")
        trace = tracing.generation_trace(model="tiny", endpoint="chat", request_id="r")
        assert trace is not None
        trace.end(outcome="completed", queue_s=0.0, prompt_tokens=1, completion_tokens=1, is_accepted=True)
        tracing.tracing_stop()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    ((path, body),) = received
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    service = {item.key: item.value.string_value for item in resource.resource.attributes}["service.name"]
    assert service == "blazr-web"
    assert [span.name for span in resource.scope_spans[0].spans] == ["queue", "generation"]
