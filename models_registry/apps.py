"""Define the Django application of the registry."""

from django.apps import AppConfig


class ModelsRegistryConfig(AppConfig):
    """Checkpoints, their overrides, browser uploads, and jobs."""

    name = "models_registry"
    verbose_name = "models registry"
    default_auto_field = "django.db.models.BigAutoField"
