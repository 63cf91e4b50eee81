"""The Celery application."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blazr_site.settings")

app = Celery("blazr")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference", "models_registry"])
