"""Requests with hostile contents: parameters, texts, files of batches. The application runs in this process."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.conf import settings as django_settings

from inference.access.api_keys import api_key_create
from inference.batches import upkeep
from inference.batches.services import batch_create
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import RequestTooLarge
from inference.files.services import file_create
from inference.files.store import FileWriter
from inference.jobs import hints
from inference.models import ApiKey, Batch, BatchLine, GenerationJob
from inference.transport import keys as redis_keys
from inference.values.principal import LOCAL
from tests.blazr_site.test_asgi_bodies import MIB, in_settings, message_of, post  # noqa: F401 - a fixture for all
from tests.faults.parameters import OTHERS, TARGETS, Target, wrong_values
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)

MAX_REFUSAL_S = 0.05


@pytest.fixture
def checkpoint_id() -> str:
    """A registered model, so that a request with right values would be queued."""
    return str(make_checkpoint("tiny").pk)


@pytest.fixture
def admin() -> dict[str, str]:
    return {"authorization": f"Bearer {api_key_create(name='boss', scopes=['admin'])[1]}"}


@pytest.fixture
def redis_client(redis_server) -> Iterator[Any]:
    import redis

    with redis.Redis.from_url(redis_server.client) as client:
        yield client


def _problem(target: Target, name: str, status: int, body: Any) -> str | None:
    """What is wrong with a refusal: its status, or its shape in the API of the target's path."""
    if status != 400:
        return f"status {status}: {body}"
    try:
        message = message_of(body)
        if target.path.startswith("/api/") and target.path not in ("/api/jobs", "/api/schedules"):
            is_shaped = set(body) == {"error"} and isinstance(body["error"], str)
        elif target.path.startswith("/v1/messages"):
            is_shaped = body["type"] == "error" and set(body["error"]) == {"type", "message"}
        else:
            param = body["error"]["param"]  # none: the body isn't JSON
            is_shaped = set(body["error"]) == {"message", "type", "param", "code"}
            is_shaped = is_shaped and (param is None or param.partition(".")[0] in (name, target.within))
    except (KeyError, TypeError):
        return f"no error of this API: {body}"
    return None if is_shaped and 10 < len(message) < 500 else f"no error of this API, or of another member: {body}"


async def _refused(target: Target, name: str, raw: bytes, headers: dict[str, str]) -> str | None:
    """Send a wrong value; what is wrong with the response, if anything."""
    took_s: list[float] = []
    while not took_s or (min(took_s) > MAX_REFUSAL_S and len(took_s) < 3):  # once in a while memory is collected
        started = time.process_time()
        status, body = await post(target.path, target.text_with(name, raw), **headers)
        took_s.append(time.process_time() - started)
    problem = _problem(target, name, status, body)
    if problem is None and min(took_s) > MAX_REFUSAL_S:
        problem = f"{min(took_s):.3f} s"
    return problem and f"{target.path} {target.within} {name} = {raw[:60]!r}: {problem}"


def _serializers(base: type = StrictSerializer) -> Iterator[type]:
    for found in base.__subclasses__():
        if found.__module__.startswith("inference."):
            yield found
        yield from _serializers(found)


@pytest.mark.fault(
    "F36",
    provoked="values outside of the range or type of every member of every request body: NaN, infinities, 1e308, -1, "
    "2^31, 2^64, 5,000 digits, wrong types, 100,000 stop strings, token ids that no vocabulary has",
    holds="each is refused with 400 in the shape of its API, which names the member, within 50 ms of the processor; "
    "nothing is queued, stored or counted",
)
def test_wrong_values_of_every_member_are_refused(checkpoint_id, admin, redis_client):
    assert {found.__name__ for found in _serializers()} == {item.serializer.__name__ for item in TARGETS} | OTHERS
    num_keys = ApiKey.objects.count()
    problems: list[str] = []
    count = 0

    async def drive() -> None:
        nonlocal count
        for target in TARGETS:
            for name, field in target.serializer().fields.items():
                for raw in wrong_values(field):
                    count += 1
                    if problem := await _refused(target, name, raw, admin):
                        problems.append(problem)

    asyncio.run(drive())
    assert not problems, f"{len(problems)} of {count}:\n" + "\n".join(problems)
    assert count > 4000
    assert (ApiKey.objects.count(), Batch.objects.count(), GenerationJob.objects.count()) == (num_keys, 0, 0)
    assert not any(redis_client.llen(name) for name in redis_keys.model_queues(checkpoint_id))


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 5, "max_tokens": 4},
    "best_of": {"n": 3, "best_of": 2},
    "n": {"n": 128, "prompt": ["a"] * 9},
    "stop_token_ids": {"stop_token_ids": [100_331]},
    "logit_bias": {"logit_bias": {"100331": 1}},
    "prompt": {"prompt": [100_331]},
    "mirostat": {"mirostat": 1, "top_k": 5},
}


def test_values_that_contradict_each_other_or_the_vocabulary_are_refused(checkpoint_id, redis_client):
    async def drive() -> None:
        for name, members in CONTRADICTIONS.items():
            body = orjson.dumps({"model": "tiny", "prompt": "Hi", **members})
            status, found = await post("/v1/completions", body)
            assert status == 400, (name, found)
            assert found["error"]["param"] in (name, "top_k"), found

    asyncio.run(drive())
    assert not any(redis_client.llen(name) for name in redis_keys.model_queues(checkpoint_id))


TEMPLATE = "{% for i in range(10**9) %}x{% endfor %}"


def test_no_endpoint_takes_a_template_of_a_request(checkpoint_id, admin, redis_client):
    """CVE-2026-115918: the gate stood at one endpoint, and another one forgot it."""
    found: dict[tuple[str, str, str], tuple[int, str]] = {}

    async def drive() -> None:
        for target in TARGETS:
            values: dict[str, Any] = {"chat_template": TEMPLATE}
            if "chat_template_kwargs" in target.serializer().fields:
                values["chat_template_kwargs"] = {"chat_template": TEMPLATE}
            for name, value in values.items():
                status, body = await post(target.path, target.text_with(name, orjson.dumps(value)), **admin)
                found[target.path, target.within, name] = status, message_of(body)

    asyncio.run(drive())
    assert {key: value for key, value in found.items() if value[0] != 400 or "chat_template" not in value[1]} == {}
    assert sum(name == "chat_template_kwargs" for _, _, name in found) >= 6
    assert not any(redis_client.llen(name) for name in redis_keys.model_queues(checkpoint_id))


HEAD = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":'
BODY = b'{"model":"tiny","prompt":"Hi"}'


def _lines(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield HEAD.replace(b'"a"', b'"%d"' % number) + BODY + b"}\n"


HOSTILE_FILES: dict[str, tuple[Callable[[], Iterable[bytes]], str, int | None]] = {
    "50,001 lines": (lambda: _lines(50_001), "too_many_requests", None),
    "a line of 100 MB": (lambda: (b"x" * MIB for _ in range(100)), "line_too_long", 1),
    "200 MB of blank lines": (lambda: (b"\n" * MIB for _ in range(200)), "too_many_blank_lines", 50_001),
    "a line of empty lists": (
        lambda: [HEAD + b'{"x":[' + b"[]," * 1_300_000 + b"[]]}}\n"], "invalid_json_line", 1,
    ),
    "a line of 5,000 levels": (lambda: [HEAD + b"[" * 5000 + b"]" * 5000 + b"}\n"], "invalid_json_line", 1),
    "the same id twice": (lambda: [HEAD + BODY + b"}\n", b"\n", HEAD + BODY + b"}\n"], "duplicate_custom_id", 3),
    "another endpoint": (
        lambda: [*_lines(2), HEAD.replace(b"completions", b"embeddings") + BODY + b"}\n"], "mismatched_url", 3,
    ),
    "no UTF-8": (lambda: [*_lines(1), HEAD + b'{"model":"\xff"}}\n'], "invalid_json_line", 2),
    "UTF-16": (lambda: ["{}\n".encode("utf-16")], "invalid_json_line", 1),
    "a BOM in the second line": (lambda: [*_lines(1), b"\xef\xbb\xbf", *_lines(1)], "invalid_json_line", 2),
    "NaN": (lambda: [HEAD + b'{"temperature":NaN}}\n'], "invalid_json_line", 1),
}  # fmt: skip


@pytest.mark.fault(
    "F57",
    provoked="batch files of 50,001 lines, 200 MB and a byte, 200 MB of blank lines, a line of 100 MB, 1.3 million "
    "lists or 5,000 levels in a line, ids twice, another endpoint, bad UTF-8, UTF-16, NaN",
    holds="the validation fails and names the line; at most 64 MiB of memory; nothing is stored; BOM and CRLF are read",
)
@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_hostile_files_fail_with_the_line_in_bounded_memory(kind, batch_files, checkpoint_id):
    pieces, code, number = HOSTILE_FILES[kind]
    batch = make_batch_of(pieces())
    tracemalloc.start()
    started = time.process_time()
    upkeep.batches_turn(owner="keeper")
    took_s = time.process_time() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    batch.refresh_from_db()
    assert batch.state == "failed"
    assert [(error["code"], error["line"]) for error in orjson.loads(batch.errors)][:1] == [(code, number)]
    assert BatchLine.objects.count() == 0
    assert peak_bytes <= 64 * MIB
    assert took_s < 20


def test_a_file_of_200_mib_and_a_byte_leaves_nothing(batch_files):
    writer = FileWriter(django_settings.BLAZR_MAX_FILE_BYTES)
    for _ in range(200):
        writer.write(b"x" * MIB)
    with pytest.raises(RequestTooLarge, match="209,715,200 bytes"):
        writer.write(b"x")
    assert [path for path in batch_files.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_a_bom_and_carriage_returns_are_read(batch_files, checkpoint_id):
    lines = [line.replace(b"\n", b"\r\n") for line in _lines(3)]
    batch = make_batch_of([b"\xef\xbb\xbf", *lines, b"\r\n"])
    upkeep.batches_turn(owner="keeper")
    batch.refresh_from_db()
    assert (batch.state, batch.num_total, batch.errors) == ("in_progress", 3, "")


def make_batch_of(pieces: Iterable[bytes]) -> Batch:
    writer = FileWriter()
    for piece in pieces:
        writer.write(piece)
    file = file_create(writer=writer, filename="in.jsonl", purpose="batch", tenant=LOCAL.tenant, expires_s=None)
    values = {"input_file_id": file.file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return batch_create(values=values, principal=LOCAL)


@pytest.fixture
def batch_files(settings, tmp_path, monkeypatch) -> Path:
    """The folder of the file store; nobody is woken for a batch."""
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    return settings.BLAZR_FILES_DIR
