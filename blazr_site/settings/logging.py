"""Logging: one line per record on standard error; the supervisor adds the prefix and keeps the files."""

from __future__ import annotations

from blazr_site.settings import env

BLAZR_LOG_LEVEL = env.text(
    "BLAZR_LOG_LEVEL", "INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="Least severe level that is logged."
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "blazr_site.log_lines.LineFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": BLAZR_LOG_LEVEL},
    "loggers": {
        # Lines about single requests are the metrics' business; a refused Host header is not news.
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
    },
}
