"""Replay requests whose contents were kept on another model: one as a job, those of a day as a batch.

A request can be replayed if the request log has its prompt in full and what else was asked for (``plan``). Its seed is
kept; what concerned its client only (a stream, log-probabilities, a priority) isn't. All functions use the database.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
from django.utils import timezone

from inference.batches.inspection import error_of, payload_of
from inference.batches.services import batch_of_lines_create, batches_of
from inference.dialects.openai.bodies import PATHS, body_of_plan
from inference.errors import BlazrError, Conflict, InvalidRequest, NotFound
from inference.jobs.services import JobRequest, jobs_submit
from inference.models import Batch, BatchResult, GenerationJob, UsageRecord
from inference.models.readable_rows import readable_rows
from inference.records.request_log import is_cut, logged_text
from inference.values.images import IMAGE_PART
from inference.values.messages import PromptMessage
from inference.values.plan import INTERACTIVE_PRIORITY, GenerationPlan
from inference.values.principal import Principal

if TYPE_CHECKING:
    from django.db.models import QuerySet

MAX_REPLAYED = 200
"""Requests of a batch: the newest ones."""
SPAN = timedelta(days=1)
WINDOW = "24h"
LABEL = "replay of "
_OTHER_WORK = ("job", "batch")
"""Endpoints of rows that aren't requests of clients."""
_OF_ACCOUNT = "user:"
"""How the tenant of an account's batch begins; only accounts replay, but a key can give its batches any metadata."""
_INPUT_EXPIRES_S = 2 * 86_400
"""Seconds after which the copied prompts are deleted; the batch has read them within its window, a day."""
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a damaged row raises."""
_SOURCE, _CANDIDATE, _LEFT_OUT = "replay_of", "candidate", "left_out"


@dataclass(frozen=True, slots=True)
class Replay:
    """A batch of replayed requests.

    Attributes:
        source: Served name of the model that answered them.
        candidate: Name of the model that they are replayed on.
        num_left_out: Requests that could not be replayed.
    """

    batch: Batch
    source: str
    candidate: str
    num_left_out: int


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """A request and its replay.

    Attributes:
        row: The request; None: it is no longer in the log.
        texts: Texts of the replay; empty when it failed.
        error: Why the replay failed; empty: it didn't.
        engine_s: Seconds of the replay in the engine.
    """

    request_id: str
    row: UsageRecord | None
    texts: tuple[str, ...]
    error: str
    completion_tokens: int
    engine_s: float


# --- one request ---------------------------------------------------------------------------------


def replay_plan(row: UsageRecord, model: str) -> GenerationPlan:
    """Return a request's plan for another model.

    Raises:
        Conflict: It can't be replayed; the message says why.
    """
    reason = why_not_replayable(row)
    if reason:
        raise Conflict(f"This request can't be replayed: {reason}", param="request_id")
    plan = _plan_of(row)
    params = replace(plan.params, logprobs=None, prompt_logprobs=None) if plan.keep is None else plan.params
    return replace(
        plan,
        model=model,
        params=params,
        stream=False,
        include_usage=False,
        include_queue=False,
        echo=False,
        logprobs=None,
        priority=INTERACTIVE_PRIORITY,
        cache_salt=None,
        return_token_ids=False,
        return_tokens_as_token_ids=False,
        keep_alive_s=None,
    )


def why_not_replayable(row: UsageRecord) -> str:
    """Return why a request can't be replayed, as a sentence; empty if it can."""
    if row.endpoint in _OTHER_WORK:
        return f"it was a {row.endpoint}; the page of jobs runs a job again."
    if not row.plan or not row.prompt:
        return "its contents weren't kept; BLAZR_LOG_REQUESTS=contents keeps those of later requests."
    try:
        plan = _plan_of(row)
    except (*_DAMAGE, BlazrError):
        if is_cut(row.prompt):
            return "its prompt is too long for the request log, which keeps 20,000 characters."
        return "what the request log kept of it can't be read."
    if plan.endpoint not in PATHS:
        return "it asked for vectors, not for text."
    if plan.state is not None or plan.saves_state is not None:
        return "it depends on a saved state, which belongs to its model."
    if any(part == {"type": IMAGE_PART} for prompt in plan.prompts for part in _parts(prompt)):
        return "it has pictures, which the request log doesn't keep."
    return ""


def replay_submit(*, row: UsageRecord, model: str, principal: Principal) -> GenerationJob:
    """Queue a request again, on another model, as a job.

    Raises:
        Conflict: It can't be replayed.
        BlazrError: As ``jobs_submit`` raises.
    """
    plan = replay_plan(row, model)
    if len(plan.prompts) > 1:
        raise Conflict(
            f"This request can't be replayed: it has {len(plan.prompts)} prompts, a job takes one.", param="request_id"
        )
    (job,) = jobs_submit(requests=[JobRequest(plan)], principal=principal, batch_label=f"{LABEL}{row.request_id}"[:100])
    return job


def texts_of_log(row: UsageRecord) -> tuple[str, ...]:
    """Return the texts of a logged output; one that was cut is one text, as it was kept."""
    try:
        found = json.loads(row.output)
    except ValueError:
        return (row.output,)
    return tuple(map(str, found)) if isinstance(found, list) else (str(found),)


def texts_of_response(body: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of a response in OpenAI's shape, as the request log words them."""
    return tuple(_choice_text(choice) for choice in body.get("choices", ()) if isinstance(choice, dict))


# --- those of a day --------------------------------------------------------------------------------


def replay_batch_create(*, source: str, candidate: str, principal: Principal) -> Replay:
    """Replay the newest completed requests of a model's last day on a candidate, as a batch of one endpoint.

    Raises:
        InvalidRequest: The candidate is the model itself.
        Conflict: No request can be replayed.
        BlazrError: As ``batch_of_lines_create`` raises.
    """
    if candidate == source:
        raise InvalidRequest(f"{candidate!r} is the model that answered these requests.", param="candidate")
    rows = UsageRecord.objects.filter(model=source, outcome="completed", created_at__gte=timezone.now() - SPAN)
    found = readable_rows(rows.exclude(endpoint__in=_OTHER_WORK).order_by("-pk"), MAX_REPLAYED)
    lines = list(_lines(found, candidate))
    if not lines:
        reason = next((why_not_replayable(row) for row in found), "") or "none completed within the last day."
        raise Conflict(f"No request of {source!r} can be replayed: {reason}", param="model")
    endpoint = Counter(line["url"] for line in lines).most_common(1)[0][0]
    lines = [line for line in lines if line["url"] == endpoint]
    num_left_out = len(found) - len(lines)
    batch = batch_of_lines_create(
        lines=lines,
        filename="replay.jsonl",
        expires_s=_INPUT_EXPIRES_S,
        values={
            "endpoint": endpoint,
            "completion_window": WINDOW,
            "metadata": {_SOURCE: source, _CANDIDATE: candidate, _LEFT_OUT: str(num_left_out)},
        },
        principal=principal,
    )
    return Replay(batch, source, candidate, num_left_out)


def replay_get(*, batch_id: str, principal: Principal) -> Replay:
    """Return a replay by the id of its batch.

    Raises:
        NotFound: There is no such batch of an account that the caller may see, or it is no replay.
    """
    rows = readable_rows(_batches(principal).filter(batch_id=batch_id[:40]), 1) if "\0" not in batch_id else []
    found = _replay(rows[0]) if rows else None
    if found is None:
        raise NotFound(f"There is no replay with the id {batch_id[:60]!r}.", param="batch_id")
    return found


def replay_list(*, principal: Principal, limit: int) -> list[Replay]:
    """Return the newest replays."""
    rows = readable_rows(_batches(principal).filter(metadata__contains=f'"{_SOURCE}"'), limit)
    return [found for row in rows if (found := _replay(row)) is not None]


def replayed_requests(replay: Replay, *, request_id: str = "") -> list[ReplayedRequest]:
    """Return the requests of a replay that have a result so far, in the order of the file, or only one of them."""
    results = BatchResult.objects.filter(batch=replay.batch).select_related("line").order_by("line_id")
    if request_id:
        results = results.filter(line__custom_id=request_id.replace("\0", ""))
    found = readable_rows(results, MAX_REPLAYED)
    ids = [item.line.custom_id for item in found]
    known = {row.request_id: row for row in readable_rows(UsageRecord.objects.filter(request_id__in=ids))}
    return [_replayed(item, known.get(item.line.custom_id)) for item in found]


def _replayed(result: BatchResult, row: UsageRecord | None) -> ReplayedRequest:
    payload = payload_of(result)
    response = payload.get("response") or {}
    return ReplayedRequest(
        request_id=result.line.custom_id,
        row=row,
        texts=() if result.is_error else texts_of_response(response.get("body") or {}),
        error=error_of(payload)[1] if result.is_error else "",
        completion_tokens=result.completion_tokens,
        engine_s=result.engine_s,
    )


def _batches(principal: Principal) -> QuerySet[Batch]:
    return batches_of(principal).filter(tenant__startswith=_OF_ACCOUNT)


def _replay(row: Batch) -> Replay | None:
    metadata = orjson.loads(row.metadata) if row.metadata else {}
    if _SOURCE not in metadata or _CANDIDATE not in metadata:
        return None
    left_out = str(metadata.get(_LEFT_OUT, "0"))
    return Replay(row, metadata[_SOURCE], metadata[_CANDIDATE], int(left_out) if left_out.isdecimal() else 0)


def _lines(rows: Sequence[UsageRecord], model: str) -> Iterator[dict[str, Any]]:
    for row in rows:
        try:
            plan = replay_plan(row, model)
            body = body_of_plan(plan)
            orjson.dumps(body)  # lone surrogates are no JSON: a TypeError
        except (*_DAMAGE, BlazrError):
            continue
        yield {"custom_id": row.request_id, "method": "POST", "url": PATHS[plan.endpoint], "body": body}


def _plan_of(row: UsageRecord) -> GenerationPlan:
    """Return the plan of a logged request.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, BlazrError: The row is cut or damaged.
    """
    prompts = json.loads(row.prompt)
    if not (isinstance(prompts, list) and prompts and all(isinstance(item, dict) for item in prompts)):
        raise ValueError("the prompt is no list of prompts")
    if not all(isinstance(message, dict) for prompt in prompts for message in prompt.get("messages", ())):
        raise ValueError("the messages are no list of messages")
    return GenerationPlan.from_dict({**json.loads(row.plan), "prompts": prompts})


def _parts(prompt: PromptMessage) -> Iterator[Any]:
    for message in prompt.get("messages", ()):
        content = message.get("content")
        yield from content if isinstance(content, list) else ()


def _choice_text(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls = ((str(item.get("name", "")), str(item.get("arguments", ""))) for item in functions)
    return logged_text(str(message.get("reasoning_content") or ""), str(message.get("content") or ""), calls)
