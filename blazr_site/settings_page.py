"""The page of settings: what is in force and where each value comes from, choices for all models."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from blazr_site.settings import read, sources
from blazr_site.settings.in_force import settings_in_force
from inference.errors import InvalidRequest, shown
from inference.records.energy_price import MAX_CURRENCY_CHARS, energy_price, energy_price_choose
from models_registry import live
from models_registry.server_choices import passports_choose, server_choices
from models_registry.views import StaffAction, StaffPage


class SettingsPage(StaffPage):
    """Settings, which options, variables and the file set; choices for all models are set here."""

    template_name = "registry/settings.html"
    section = "settings"
    permission_required = "inference.scope_admin"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return all settings with their sources; secrets are masked."""
        rows = [
            {"row": row, "help": variable.help, "is_default": row.source == "default"}
            for variable, row in settings_in_force()
        ]
        return {
            "settings": rows,
            "file": sources.config_file().path,
            "choices": server_choices(),
            "price": energy_price(),
            "max_currency": MAX_CURRENCY_CHARS,
            "counters": energy_counters_in_words(live.look()),
            "warnings": [" ".join(words) for words in read.warnings()],
        }


def energy_counters_in_words(seen: live.Live) -> list[str]:
    """Return for each worker which energy counters it reads, or why none."""
    if seen.notice:
        return [seen.notice]
    lines = []
    for worker in sorted(seen.workers, key=lambda worker: worker.worker_id):
        names = ", ".join(f"{reading.device} ({reading.source.upper()})" for reading in worker.energy)
        words = f"reads {names}" if names else worker.energy_notice or "reads no energy counter"
        lines.append(f"{worker.worker_id}, {worker.device or 'device unknown'}: {words}")
    return lines or ["No worker is alive, so no energy is counted."]


class EnergyPriceChoice(StaffAction):
    """What a kilowatt-hour costs: ``per_kwh`` and ``currency`` of the form; an empty price takes it away."""

    permission_required = "inference.scope_admin"

    def act(self, **kwargs: Any) -> str:
        """Keep the price, and lead back to the page."""
        form = self.request.POST
        energy_price_choose(
            per_kwh=form.get("per_kwh", ""),
            currency=form.get("currency", ""),
            author_name=self.request.user.get_username(),
        )
        return reverse("settings")


class PassportsChoice(StaffAction):
    """Whether the server makes passports by itself: ``makes_passports`` of the form is yes or no."""

    permission_required = "inference.scope_admin"

    def act(self, **kwargs: Any) -> str:
        """Keep the choice, and lead back to the page."""
        chosen = self.request.POST.get("makes_passports", "")
        if chosen not in ("yes", "no"):
            raise InvalidRequest(f"makes_passports is {shown(chosen)}; it must be yes or no.", param="makes_passports")
        passports_choose(makes_passports=chosen == "yes", author_name=self.request.user.get_username())
        return reverse("settings")
