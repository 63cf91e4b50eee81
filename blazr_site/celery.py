"""Define the Celery application."""

from __future__ import annotations

import warnings

from celery import Celery
from celery.platforms import SecurityWarning

from blazr_site.broker import Broker
from blazr_site.process_environment import use_settings, use_short_waits

use_settings()
use_short_waits()

# As root, Celery warns of pickled messages; settings.celery accepts only JSON.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("blazr", amqp=Broker)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["inference", "models_registry"])
