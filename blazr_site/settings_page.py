"""The page of settings: what is in force and where each value comes from, and which account has which role."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from blazr_site.settings import read, sources
from blazr_site.settings.in_force import settings_in_force
from models_registry.views import StaffPage


class SettingsPage(StaffPage):
    """Settings, read only: they are set by options, variables and the file."""

    template_name = "registry/settings.html"
    section = "settings"
    permission_required = "inference.scope_admin"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return all settings with their sources; secrets are masked."""
        rows = [
            {"row": row, "help": variable.help, "is_default": row.source == "default"}
            for variable, row in settings_in_force()
        ]
        sees_accounts = self.request.user.has_perm("auth.view_user")
        accounts = get_user_model().objects.order_by("username").prefetch_related("groups") if sees_accounts else []
        return {
            "settings": rows,
            "file": sources.config_file().path,
            "warnings": [" ".join(words) for words in read.warnings()],
            "sees_accounts": sees_accounts,
            "accounts": [
                {
                    "name": user.get_username(),
                    "role": "owner" if user.is_superuser else ", ".join(group.name for group in user.groups.all()),
                    "is_active": user.is_active and user.is_staff,
                    "last_login": user.last_login,
                    "pk": user.pk,
                }
                for user in accounts
            ],
        }
