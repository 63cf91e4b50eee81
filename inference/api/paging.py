"""Read the query parameters of OpenAI's list endpoints."""

from __future__ import annotations

from django.http import HttpRequest

from inference.errors import InvalidRequest


def check_parameters(request: HttpRequest, *names: str) -> None:
    """Refuse unknown query parameters.

    Raises:
        InvalidRequest: A parameter is unknown; the message names it.
    """
    for name in request.GET:
        if name not in names:
            raise InvalidRequest(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])


def page_size(request: HttpRequest, *, default: int, largest: int) -> int:
    """Return the parameter ``limit``.

    Raises:
        InvalidRequest: The value is no integer from 1 to ``largest``.
    """
    text = request.GET.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= largest:
        raise InvalidRequest(f"limit is {text[:40]!r}, it must be from 1 to {largest}.", param="limit")
    return int(text)


def one_of(request: HttpRequest, name: str, *choices: str) -> str:
    """Return a parameter with few values; the first is the default.

    Raises:
        InvalidRequest: The parameter has another value.
    """
    value = request.GET.get(name, choices[0])
    if value not in choices:
        raise InvalidRequest(f"{name} is {value[:40]!r}; it must be {' or '.join(choices)}.", param=name)
    return value
