"""Settings of logging and tracing: one line per record on standard error."""

from __future__ import annotations

import os
from typing import Any

from blazr_site.settings import read

BLAZR_LOG_LEVEL = read.text(
    "BLAZR_LOG_LEVEL", "INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="Least severe level that is logged."
)
BLAZR_LOG_FORMAT = read.text(
    "BLAZR_LOG_FORMAT", "text", choices=("text", "json"), help="text: lines for people; json: one object per record."
)
# The exporter itself reads this variable and the other OTEL_… variables.
BLAZR_TRACES_ENDPOINT = read.text(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    help="OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318; switches tracing on.",
)
if BLAZR_TRACES_ENDPOINT:
    os.environ.setdefault("OTEL_EXPORTER_OTLP_ENDPOINT", BLAZR_TRACES_ENDPOINT)  # from a file
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "blazr_site.log_lines.LineFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        },
        "json": {"()": "blazr_site.log_lines.JsonFormatter"},
    },
    "filters": {
        "unexpected": {"()": "blazr_site.log_lines.UnexpectedResponses"},
        "broker": {"()": "blazr_site.log_lines.BrokerOutage"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "json" if BLAZR_LOG_FORMAT == "json" else "line"}
    },
    "root": {"handlers": ["stderr"], "level": BLAZR_LOG_LEVEL},
    "loggers": {
        # Metrics count requests, so single requests and refused Host headers aren't logged.
        "django.request": {"level": "ERROR", "filters": ["unexpected"]},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "celery": {"level": "WARNING"},
        # The filter needs the records of success to know the end of an outage.
        "celery.worker.consumer.consumer": {"filters": ["broker"]},
        "celery.worker.consumer.connection": {"level": "INFO", "filters": ["broker"]},
        "celery.beat": {"level": "DEBUG", "filters": ["broker"]},
        "py.warnings": {"filters": ["broker"]},
        "kombu": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
if BLAZR_LOG_FORMAT == "json":
    # The web server configures its own loggers before these settings are read, so they are replaced here.
    LOGGING["loggers"] |= {
        "uvicorn": {"handlers": [], "propagate": True, "level": "WARNING"},
        "uvicorn.access": {"handlers": [], "propagate": False},
    }
