"""Define the site as a Django application, with system checks and a warning of unknown variables."""

import logging

from django.apps import AppConfig

from blazr_site.process_environment import process_options

logger = logging.getLogger(__name__)


class BlazrSiteConfig(AppConfig):
    """Registers the system checks and makes the site's Celery application the current one."""

    name = "blazr_site"
    label = "blazr_site"

    def ready(self) -> None:
        """Import both modules, which registers them, and warn; children of ``blazr serve`` don't warn again."""
        from blazr_site import celery, checks  # noqa: F401 - Django isn't set up before
        from blazr_site.settings import read  # Django reads its settings itself

        if not process_options().is_child:
            for sentence, advice in read.warnings():
                logger.warning("%s %s", sentence, advice)
