"""Read and set what operators choose for all models: whether the server makes passports by itself."""

from __future__ import annotations

from models_registry.models import ServerChoices

ONLY_ROW = 1


def server_choices() -> ServerChoices:
    """Return the choices in force; the defaults where nobody has chosen."""
    return ServerChoices.objects.filter(pk=ONLY_ROW).first() or ServerChoices(pk=ONLY_ROW)


def passports_choose(*, makes_passports: bool, author_name: str) -> ServerChoices:
    """Set whether the server makes passports of registered models by itself; those by hand are always possible.

    Args:
        author_name: Who chose.
    """
    values = {"makes_passports": makes_passports, "author_name": author_name[:150]}
    choices, _ = ServerChoices.objects.update_or_create(pk=ONLY_ROW, defaults=values)
    return choices
