"""The site as a Django application: its system checks and static files."""

from django.apps import AppConfig


class BlazrSiteConfig(AppConfig):
    """Registers the system checks."""

    name = "blazr_site"
    label = "blazr_site"

    def ready(self) -> None:
        """Importing the module registers its checks."""
        from blazr_site import checks  # noqa: F401
