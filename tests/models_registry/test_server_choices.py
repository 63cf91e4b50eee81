"""Choices for all models: the defaults without a row, and one row however often somebody chooses."""

from __future__ import annotations

import pytest

from models_registry.models import ServerChoices
from models_registry.server_choices import passports_choose, server_choices

pytestmark = pytest.mark.django_db


def test_passports_are_made_until_somebody_turns_them_off() -> None:
    assert server_choices().makes_passports and not ServerChoices.objects.exists()
    passports_choose(makes_passports=False, author_name="edwin")
    chosen = server_choices()
    assert (chosen.makes_passports, chosen.author_name) == (False, "edwin")
    passports_choose(makes_passports=True, author_name="x" * 200)
    assert server_choices().makes_passports and ServerChoices.objects.count() == 1
