"""Word the requests and responses of batch lines for the pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.batches.inspection import error_of
from inference.batches.replays import texts_of_response
from inference.pages.jobs import MAX_SHOWN_CHARS, content_text, prompt_text

PREVIEW_CHARS = 160
_OWN_MEMBERS = frozenset({"model", "prompt", "messages", "input", "instructions"})


@dataclass(frozen=True, slots=True)
class LineOutput:
    """What came of a line.

    Attributes:
        texts: Texts of the response; empty: it has none, or there is no response.
        error: (code, message); None: the line has a response.
        usage: Members of the response's usage that are numbers.
    """

    texts: tuple[str, ...] = ()
    error: tuple[str, str] | None = None
    usage: dict[str, int] | None = None


def prompts_of_body(body: dict[str, Any], limit: int) -> list[str]:
    """Return the first ``limit`` prompts of a request's body as texts, whatever a client has put there."""
    if "messages" in body:
        return [_conversation(body["messages"])]
    if "prompt" in body:
        return _texts(body["prompt"], limit)
    if "instructions" in body:
        return [f"[instructions]\n{content_text(body['instructions'])}", *_input(body.get("input"), limit)]
    return _input(body.get("input"), limit)


def num_prompts(body: dict[str, Any]) -> int:
    """Return the number of prompts that a body has."""
    value: Any = None if "messages" in body else body.get("prompt", body.get("input"))
    return len(value) if _is_list_of_prompts(value) else 1


def params_of_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return what a body asks for beside its model and its prompts."""
    return {name: value for name, value in body.items() if name not in _OWN_MEMBERS}


def output_of_payload(payload: dict[str, Any], *, is_error: bool) -> LineOutput:
    """Return what a line of the output or error file says."""
    if is_error:
        return LineOutput(error=error_of(payload))
    response = payload.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if not isinstance(body, dict):
        return LineOutput()
    usage = body.get("usage")
    numbers = usage.items() if isinstance(usage, dict) else ()
    return LineOutput(
        texts=tuple(text[:MAX_SHOWN_CHARS] for text in _response_texts(body)),
        usage={str(name): value for name, value in numbers if isinstance(value, int)},
    )


def preview(texts: list[str] | tuple[str, ...]) -> str:
    """Return the beginning of the first text that isn't blank, in one line."""
    text = next((text for text in texts if text.strip()), "")
    words = " ".join(text[: PREVIEW_CHARS * 4].split())
    return words if len(words) <= PREVIEW_CHARS else f"{words[: PREVIEW_CHARS - 1]}…"


def prompt_preview(body: dict[str, Any]) -> str:
    """Return the beginning of the first prompt; of a conversation the last message's."""
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        return preview([content_text(messages[-1].get("content"))])
    return preview(prompts_of_body(body, 1)[-1:])


def _response_texts(body: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(body.get("choices"), list):
        return texts_of_response(body)
    if isinstance(body.get("output"), list):
        return tuple(_item_text(item) for item in body["output"] if isinstance(item, dict))
    vectors = [item.get("embedding") for item in body.get("data") or () if isinstance(item, dict)]
    if vectors:
        length = f" of {len(vectors[0]):,} values" if isinstance(vectors[0], list) else ""
        return (f"{len(vectors):,} vector{'' if len(vectors) == 1 else 's'}{length}",)
    return ()


def _item_text(item: dict[str, Any]) -> str:
    """Return the text of an item of /v1/responses: of a message its parts, of anything else the item itself."""
    parts = item.get("content")
    if item.get("type") != "message" or not isinstance(parts, list):
        return content_text(item)
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts if isinstance(part, dict))


def _input(value: Any, limit: int) -> list[str]:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [_conversation(value)]
    return _texts(value, limit)


def _texts(value: Any, limit: int) -> list[str]:
    """Return one text per prompt: texts and token ids, alone or in lists."""
    return [_text(item) for item in (value[:limit] if _is_list_of_prompts(value) else [value])]


def _is_list_of_prompts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str | list)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value[:MAX_SHOWN_CHARS]
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return prompt_text({"token_ids": value})
    return content_text(value)[:MAX_SHOWN_CHARS]


def _conversation(messages: Any) -> str:
    if isinstance(messages, list) and all(isinstance(item, dict) for item in messages):
        return prompt_text({"messages": messages})
    return content_text(messages)[:MAX_SHOWN_CHARS]
