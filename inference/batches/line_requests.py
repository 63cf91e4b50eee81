"""Read the lines of batch input files, and write the lines of output and error files.

Input: ``{"custom_id": …, "method": "POST", "url": <the batch's endpoint>, "body": {…}}``. Output and error files:
https://platform.openai.com/docs/guides/batch and …/api-reference/batch/request-output. Uses no database.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import orjson

from inference.dialects.chat_bridge import translate_error
from inference.dialects.openai.embeddings import EmbeddingRequestSerializer
from inference.dialects.openai.requests import plan_from_body
from inference.dialects.responses.lines import response_request
from inference.dialects.responses.serializers import CHAT_NAMES, ResponseRequest
from inference.errors import BlazrError, InvalidRequest, UnsupportedFeature
from inference.host.client_json import parse_json
from inference.values.plan import Endpoint, GenerationPlan

ENDPOINT_KINDS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/embeddings": "embedding",
    "/v1/responses": "chat",
}
MAX_LINE_BYTES = 4 << 20
MAX_BLANK_LINES = 50_000
MAX_CUSTOM_ID = 512
MAX_METADATA = 16
"""Pairs in the metadata of a batch."""
_MEMBERS = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True)
class InputLine:
    """One request of a file.

    Attributes:
        number: Line number in the file, from 1.
        url: Path of the endpoint.
    """

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]

    @property
    def model(self) -> str:
        """The served model name; empty if the body has none."""
        found = self.body.get("model")
        return found if isinstance(found, str) else ""

    @property
    def num_inputs(self) -> int:
        """The number of texts to embed; 0 for other endpoints."""
        if ENDPOINT_KINDS[self.url] != "embedding":
            return 0
        given = self.body.get("input")
        return len(given) if isinstance(given, list) and given and isinstance(given[0], str | list) else 1


@dataclass(frozen=True, slots=True)
class LineError:
    """A validation error of a line, which fails the batch; OpenAI's error object of a batch."""

    code: str
    message: str
    line: int | None
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


def errors_text(errors: Iterable[LineError]) -> str:
    """Return the errors as JSON, as a batch's row stores them."""
    return orjson.dumps([error.to_dict() for error in errors]).decode()


def read_lines(file: IO[bytes], *endpoints: str) -> Iterator[InputLine | LineError]:
    """Yield the requests of a file, with one line in memory at a time; blank lines are skipped.

    Args:
        file: JSON lines.
        endpoints: Allowed values of ``url``.
    """
    number = num_blank = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            yield LineError("line_too_long", f"This line has more than {MAX_LINE_BYTES} bytes.", number)
            return
        if raw.strip():
            yield parse_line(raw, number, endpoints)
            continue
        num_blank += 1
        if num_blank > MAX_BLANK_LINES:  # 200 million of them take longer than the lease of the batch
            limit = MAX_BLANK_LINES
            yield LineError(
                "too_many_blank_lines", f"The file has more than {limit:,} blank lines; remove them.", number
            )
            return


def parse_line(raw: bytes, number: int, endpoints: Sequence[str]) -> InputLine | LineError:
    if number == 1:
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        value = parse_json(raw, noun="This line")
    except BlazrError as error:
        return LineError("invalid_json_line", error.message, number)
    if not isinstance(value, dict):
        return LineError("invalid_json_line", "This line must be a JSON object.", number)
    unknown = next((name for name in value if name not in _MEMBERS), None)
    if unknown is not None:
        return LineError("unknown_parameter", f"{unknown[:60]!r} is not a member of a line.", number, unknown[:60])
    for name in ("custom_id", "url", "body"):
        if value.get(name) is None:
            return LineError("missing_required_parameter", f"{name} is required.", number, name)
    custom_id, body = value["custom_id"], value["body"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        return LineError(
            "invalid_custom_id", f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters.", number, "custom_id"
        )
    if value.get("method", "POST") != "POST":
        return LineError("invalid_method", "method must be 'POST'.", number, "method")
    if value["url"] not in endpoints:
        shown, expected = str(value["url"])[:60], " or ".join(endpoints)
        return LineError("mismatched_url", f"url is {shown!r}, it must be {expected}.", number, "url")
    if not isinstance(body, dict):
        return LineError("invalid_type", "body must be an object.", number, "body")
    return InputLine(number, custom_id, value["url"], body)


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The validated request of a line.

    Attributes:
        response: The validated body of a line for /v1/responses; None for other endpoints.
    """

    plan: GenerationPlan
    response: ResponseRequest | None = None

    def resolved(self, resolve: Callable[[GenerationPlan], GenerationPlan]) -> LineRequest:
        """Return the request with its plan resolved for a model.

        Raises:
            BlazrError: As ``resolve`` raises.
        """
        try:
            return replace(self, plan=resolve(self.plan))
        except BlazrError as error:
            raise self.translate_error(error) from None

    def translate_error(self, error: BlazrError) -> BlazrError:
        """Return ``error`` with the field name of the client's API."""
        if self.response is None:
            return error
        return translate_error(error, CHAT_NAMES)


def line_request(endpoint: str, body: dict[str, Any], *, key: str) -> LineRequest:
    """The validated request of a line.

    Args:
        key: Permanent name of the line; derives the seed of a request without one, so that attempts draw alike.

    Raises:
        InvalidRequest: With the field in ``param``.
    """
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 2
    kind = ENDPOINT_KINDS[endpoint]
    if kind == "embedding":
        return LineRequest(EmbeddingRequestSerializer.shared().plan(body))
    if endpoint == "/v1/responses":
        response = response_request(body)
        return LineRequest(response.plan().with_seed(seed), response)
    plan = plan_from_body(kind, body)
    if plan.stream:
        raise UnsupportedFeature("a line of a batch has no stream; leave stream out.", param="stream")
    return LineRequest(plan.with_seed(seed))


def line_id(batch_id: str, number: int) -> str:
    return f"batch_req_{batch_id.removeprefix('batch_')}{number:06x}"


def line_number(line_id: str, batch_id: str) -> int:
    """Return the number of a line by its id in the output files; 0 for any other text."""
    digits = line_id.removeprefix(f"batch_req_{batch_id.removeprefix('batch_')}")
    return int(digits, 16) if re.fullmatch("[0-9a-f]{6,8}", digits) else 0


def respond_to_line(*, line_id: str, custom_id: str, request_id: str, body: dict[str, Any]) -> str:
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return orjson.dumps({"id": line_id, "custom_id": custom_id, "response": response, "error": None}).decode()


def refusal_line(*, line_id: str, custom_id: str, request_id: str, error: BlazrError) -> str:
    response = {"status_code": error.http_status, "request_id": request_id, "body": error.to_openai()}
    return orjson.dumps({"id": line_id, "custom_id": custom_id, "response": response, "error": None}).decode()


def unrun_line(*, line_id: str, custom_id: str, code: str, message: str) -> str:
    """Return a line of the error file for a request that has no response."""
    error = {"code": code, "message": message}
    return orjson.dumps({"id": line_id, "custom_id": custom_id, "response": None, "error": error}).decode()


def check_metadata(metadata: dict[str, Any]) -> None:
    """Check OpenAI's limits of metadata: 16 pairs, names of 64 and values of 512 characters.

    Raises:
        InvalidRequest: The metadata exceeds a limit.
    """
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"metadata has {len(metadata)} pairs, at most {MAX_METADATA} are allowed.", param="metadata"
        )
    for name, value in metadata.items():
        if len(name) > 64:
            raise InvalidRequest(f"metadata has a name of {len(name)} characters, at most 64.", param="metadata")
        if not isinstance(value, str) or len(value) > 512:
            raise InvalidRequest(
                f"metadata.{name[:64]} must be a string of at most 512 characters.", param=f"metadata.{name[:64]}"
            )
