"""Django application of the inference service."""

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    """Generation requests, queued jobs and API keys."""

    name = "inference"
    verbose_name = "inference"
    default_auto_field = "django.db.models.BigAutoField"
