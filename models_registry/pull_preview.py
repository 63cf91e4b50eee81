"""Say before a pull what it would fetch, and whether it fits and can be served; search the hub for models.

A child process asks the hub (``hub_child``), so that the hub's library stays out of the web process. Nothing is asked
where the operator allows no pulls, and no other host than that of pulls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from django.conf import settings

from inference.errors import BlazrError, EngineError, InvalidRequest, QueueFull, Unavailable
from inference.host.held_place import held_place
from inference.host.machine import DEFAULT_MEMORY_SHARE, machine_memory_bytes
from inference.host.units import format_bytes
from models_registry import live
from models_registry.checkpoint_jobs import TICK_S
from models_registry.job_process import JobProcess
from models_registry.model_paths import pull_origin
from models_registry.models import Checkpoint
from models_registry.names import suggest_name
from models_registry.package_index import PREFIX
from models_registry.pull_jobs import CHILD, check_pulls_allowed
from models_registry.services import free_name

MAX_QUERIES = 2
"""Children that ask the hub at the same time, in each web process."""
QUERY_S, SEARCH_S = 45.0, 6.0
"""Seconds that such a child has to look a model up, and to search for some."""
_slots = threading.BoundedSemaphore(MAX_QUERIES)


def pull_preview(text: str) -> dict[str, Any]:
    """Return what a pull would fetch; nothing but config.json, or headers of GGUF files, is fetched.

    Args:
        text: As ``model_paths.pull_origin`` takes it.

    Returns:
        ``origin``, ``suggested_name``, ``registered_as`` (models of that origin), ``checks`` (each with a ``mark``:
        good, warn or bad, and ``words``), ``can_be_pulled``; for a repository of the hub what ``hub_preview`` found.

    Raises:
        InvalidRequest: The text names nothing that can be pulled.
        PermissionRefused: The server doesn't pull on request.
        NotFound, Unavailable, QueueFull: It can't be looked up.
    """
    origin = pull_origin(text)
    check_pulls_allowed()
    known = Checkpoint.objects.filter(source=Checkpoint.Source.HUB, origin=origin)
    shown = {
        "origin": origin,
        "suggested_name": free_name(suggest_name(origin)),
        "registered_as": list(known.values_list("served_model_name", flat=True)),
    }
    if origin.startswith(PREFIX):
        return shown | {"checks": _checks_of_wheel(), "can_be_pulled": True}
    found: dict[str, Any] = _query_hub({"model": origin, "is_preview": True}, QUERY_S)
    checks = list(_checks(found))
    files = [{"name": name, "size_bytes": size} for name, size in found["files"]]
    can_be_pulled = all(check["mark"] != "bad" for check in checks)
    return found | shown | {"files": files, "checks": checks, "can_be_pulled": can_be_pulled}


def pull_search(text: str, limit: int = 20) -> list[dict[str, Any]]:
    """Return what the hub finds, most downloaded first.

    Raises:
        InvalidRequest: The text is empty, or the limit out of its range.
        PermissionRefused: The server doesn't pull on request.
        Unavailable, QueueFull: The hub can't be searched.
    """
    if not text.strip():
        raise InvalidRequest("the search is empty; give a part of a model's name.", param="text")
    check_pulls_allowed()
    found: list[dict[str, Any]] = _query_hub({"search": text, "limit": limit}, SEARCH_S)
    return found


def _query_hub(query: Mapping[str, Any], max_seconds: float) -> Any:
    """Return the child's answer."""
    deadline = time.monotonic() + max_seconds
    with _slot(), JobProcess(CHILD, query, can_fetch=True) as child:
        for message in child.messages(TICK_S):
            if "error" in message:
                raise BlazrError.from_dict(message["error"])
            if "result" in message:
                return message["result"]
            if time.monotonic() > deadline:
                raise Unavailable(f"the hub didn't answer within {max_seconds:g} s; try again later.")
    raise EngineError("the hub was asked, and nothing came of it; the server's log says why.")


def _slot() -> AbstractContextManager[None]:
    refusal = QueueFull(f"{MAX_QUERIES} others ask the hub right now; try again in a moment.", retry_after_s=2)
    return held_place(_slots, refusal)


# --- what the figures mean ---------------------------------------------------------------------


def _check(mark: str, words: str) -> dict[str, str]:
    return {"mark": mark, "words": words}


def _checks_of_wheel() -> list[dict[str, str]]:
    limit = format_bytes(settings.BLAZR_MAX_UPLOAD_BYTES)
    return [
        _check(
            "warn",
            "A wheel of the package index: what is in it is known once it is here. Its model file is checked and "
            f"inspected then; the limit is {limit}.",
        )
    ]


def _checks(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    yield _of_type(found)
    if found["choice_message"]:
        yield _check("good", found["choice_message"])
    if found["ignored_files"]:
        yield _check("warn", f"Ignored, as they are no models: {', '.join(found['ignored_files'][:5])}.")
    yield from (_check("warn", text) for text in found["warnings"])
    if found["is_gated"]:
        yield _check(
            "warn", "It is gated: accept its terms on the hub, and set HF_TOKEN of the server to that account's token."
        )
    total, limit = found["total_bytes"], int(settings.BLAZR_MAX_UPLOAD_BYTES)
    if total > limit:
        yield _check(
            "bad",
            f"{format_bytes(total)} is more than the {format_bytes(limit)} that a pull may have "
            "(BLAZR_MAX_UPLOAD_BYTES).",
        )
    yield _of_disk(total - found["cached_bytes"], found["cached_bytes"], found["free_disk_bytes"])
    if found["weights_bytes"]:
        yield _of_memory(found["weights_bytes"], found["quantised_bytes"])


def _of_type(found: Mapping[str, Any]) -> dict[str, str]:
    if found["refusal"]:
        refusal: str = found["refusal"]
        return _check("bad", f"It would be refused: {refusal.removesuffix('.')}.")
    if found["family"]:
        words = "the weights are checked once they are here"
        if found["format"] == "GGUF":
            words = "by the file's header, which was read; the weights are checked once they are here"
        return _check("good", f"This server reads {found['family']}; {words}.")
    if "config.json" in {name for name, _ in found["files"]}:
        return _check("warn", "Its config.json names no type: the tensors' names decide once they are here.")
    return _check("warn", "It has no config.json: the tensors' names and shapes decide once they are here.")


def _of_disk(num_needed: int, num_cached: int, num_free: int) -> dict[str, str]:
    words = f"{format_bytes(num_needed)} to fetch"
    if num_cached:
        words += f", as the cache has {format_bytes(num_cached)}"
    if num_needed > num_free:
        return _check("bad", f"{words}: more than the {format_bytes(num_free)} that are free on the cache's disk.")
    return _check("good", f"{words}; {format_bytes(num_free)} are free on the cache's disk.")


def _of_memory(num_stored: int, quantised: Mapping[str, int]) -> dict[str, str]:
    """Compare the weights with the memory for models of the largest worker, or of this machine."""
    workers = live.look().workers
    if workers:
        budget, where = max(worker.memory_budget_bytes for worker in workers), "a worker has for models"
    else:
        budget = settings.BLAZR_MEMORY_BUDGET or int(DEFAULT_MEMORY_SHARE * machine_memory_bytes())
        where = "this machine has for models"
    capacity = f"the {format_bytes(budget)} that {where}"
    if num_stored < budget:
        return _check("good", f"{format_bytes(num_stored)} of weights fit into {capacity}; states come on top.")
    words = f"{format_bytes(num_stored)} of weights don't fit into {capacity}"
    fitting = [f"{name} (about {format_bytes(size)})" for name, size in quantised.items() if size < budget]
    if fitting:
        return _check("warn", f"{words}; quantised while they are loaded they do: {' or '.join(fitting)}.")
    return _check("warn", f"{words}, as far as their files' sizes tell.")
