"""Django application of the inference service."""

from django.apps import AppConfig
from django.conf import settings

from inference.host.fault_points import arm


class InferenceConfig(AppConfig):
    """Generation requests, queued jobs and API keys."""

    name = "inference"
    verbose_name = "inference"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Arm the fault points that a test has named."""
        if settings.BLAZR_FAULTS:
            arm(settings.BLAZR_FAULTS)
