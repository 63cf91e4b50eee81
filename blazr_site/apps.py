"""The site as a Django application: its system checks and static files."""

from django.apps import AppConfig


class BlazrSiteConfig(AppConfig):
    """Registers the system checks and makes the site's Celery application the current one."""

    name = "blazr_site"
    label = "blazr_site"

    def ready(self) -> None:
        """Importing the modules does both."""
        from blazr_site import celery, checks  # noqa: F401
