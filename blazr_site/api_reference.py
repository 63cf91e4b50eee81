"""Print the reference of the API as Markdown, built from the OpenAPI document.

``python -m blazr_site.api_reference > docs/api-reference.md`` writes the page; a test compares page and document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import TYPE_CHECKING

from blazr_site.process_environment import use_settings

if TYPE_CHECKING:
    from blazr_site.api_docs import Field, Operation

HEAD = """# API reference

Every endpoint with its parameters, the members of its body and of its response, as the OpenAPI document
has them. `python -m blazr_site.api_reference > docs/api-reference.md` writes this page; a running server
shows the same at `/docs` and `/schema`. How the endpoints behave is in [the API](api.md). Each POST also
takes the header [`Idempotency-Key`](api.md#sending-a-request-twice).
"""
TITLES = {
    "v1": "OpenAI's and Anthropic's APIs",
    "tokens": "Tokens and templates",
    "lifecycle": "Models in memory, aliases, running requests",
    "batches": "Files and batches",
    "jobs": "Jobs",
    "schedules": "Schedules",
    "ollama": "Ollama's API",
    "keys": "Keys",
    "usage": "Usage",
    "probes": "Probes and metrics",
}
"""Tags of the OpenAPI document in the order of the page."""
IDEMPOTENCY_KEY = "Idempotency-Key"
"""A header of each POST, named once at the head of the page."""
MAX_LINE_LENGTH = 108
PAGES_ONLY = "/registry/"
"""Paths of the pages' own JSON API, which clients don't use."""


def reference() -> str:
    """Return the page; Django has to be set up."""
    # Django isn't set up when this module is imported.
    from blazr_site.api_docs import openapi_document, operations

    groups: dict[str, list[Operation]] = {tag: [] for tag in TITLES}
    for operation in operations(openapi_document()):
        if not operation.path.startswith(PAGES_ONLY):
            groups.setdefault(operation.tag, []).append(operation)
    lines = [HEAD]
    for tag, found in groups.items():
        if found:
            lines.append(f"## {TITLES.get(tag, tag.capitalize())}\n")
            lines.extend(line for operation in found for line in _operation_lines(operation))
    lines.extend(_refusal_lines())
    return "\n".join(lines).rstrip("\n") + "\n"


def _operation_lines(operation: Operation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}\n"
    yield f"{operation.summary}.\n"
    in_path = {name.strip("{}") for name in operation.path.split("/")}
    shown = [field for field in operation.parameters if field.name not in in_path | {IDEMPOTENCY_KEY}]
    yield from _table("Parameter", shown)
    yield from _table("Member of the body", operation.body)
    for response in operation.responses:
        if response.status[:1] == "2" and response.fields:
            names = ", ".join(f"`{field.name}`" for field in response.fields)
            yield fill(f"{response.status}: {names}.", MAX_LINE_LENGTH) + "\n"
    statuses = sorted({response.status for response in operation.responses})
    yield fill(f"Statuses: {', '.join(statuses)}.", MAX_LINE_LENGTH) + "\n"


def _refusal_lines() -> Iterator[str]:
    # Serializers need Django, which isn't set up when this module is imported.
    from inference.api.platform.infill import REFUSED_IN_INFILL
    from inference.dialects import refusals
    from inference.dialects.anthropic.serializers import REFUSED_IN_MESSAGES
    from inference.dialects.ollama.serializers import REFUSED_OPTIONS
    from inference.dialects.responses.serializers import REFUSED_IN_RESPONSES

    yield "## Parameters that are refused\n"
    yield (
        fill(
            "Status 400 and the code `unsupported_parameter`, unless the value is null or one of those that mean off. "
            "A parameter that is in no table is refused as well.",
            MAX_LINE_LENGTH,
        )
        + "\n"
    )
    tables = {
        "Everywhere": refusals.REFUSED_ANYWHERE,
        "Completions": refusals.REFUSED_IN_COMPLETIONS,
        "Chat completions": refusals.REFUSED_IN_CHAT,
        "Responses": REFUSED_IN_RESPONSES,
        "Messages": REFUSED_IN_MESSAGES,
        "Options of Ollama": REFUSED_OPTIONS,
        "Infill": REFUSED_IN_INFILL,
    }
    for title, rules in tables.items():
        if rules:
            yield f"| {title} | Reason | Passes |"
            yield "|---|---|---|"
            for name, rule in rules.items():
                passes = ", ".join(dict.fromkeys(f"`{json.dumps(value)}`" for value in rule.neutral))
                yield f"| `{name}` | {_cell(rule.reason)} | {passes} |"
            yield ""
    yield "Hints are accepted and have no effect:\n"
    yield "| Hint | Must be |"
    yield "|---|---|"
    yield from (f"| `{name}` | {_cell(hint.expected)} |" for name, hint in refusals.HINTS.items())
    yield ""


def _table(title: str, fields: Iterable[Field]) -> Iterator[str]:
    rows = [
        f"| `{field.name}` | {_cell(field.kind)} | {'yes' if field.is_required else ''} | {_cell(field.text)} |"
        for field in fields
    ]
    if rows:
        yield f"| {title} | Type | Required | Meaning |"
        yield "|---|---|---|---|"
        yield from rows
        yield ""


def _cell(text: str) -> str:
    """Return text for a table cell: without line breaks, and with escaped pipes."""
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Set Django up and print the page."""
    use_settings()
    # Importing Django's settings reads the environment, which is for the command only.
    import django

    django.setup()
    sys.stdout.write(reference())


if __name__ == "__main__":
    main()
