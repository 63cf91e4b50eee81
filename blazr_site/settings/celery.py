"""Settings of Celery, which runs loads, sweeps and webhooks; generations have queues of their own."""

from __future__ import annotations

from blazr_site.settings.redis import _URLS, BLAZR_REDIS_TIMEOUT_S
from blazr_site.settings.storage import BLAZR_DATA_DIR

# Seconds for running requests to finish at shutdown; requests that still run are requeued.
BLAZR_DRAIN_GRACE_S = 30
# Most requests that one worker holds, over all models; the others stay in Redis for other workers.
BLAZR_WORKER_ADMISSION = 1024

CELERY_BROKER_URL = _URLS.celery
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # Seconds, by the clocks of the machines, after which kombu redelivers the task of a worker that was killed.
    "visibility_timeout": 10,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 5,
    "socket_keepalive": True,
    "socket_connect_timeout": BLAZR_REDIS_TIMEOUT_S,
    "health_check_interval": 15,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Connect again also after an error reply of Redis, such as that its memory is full; Celery would end the worker.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_BACKEND = None
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_CONCURRENCY = 4  # threads for tasks
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_ENABLE_UTC = True
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(BLAZR_DATA_DIR / "beat-schedule")
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
CELERY_BEAT_SCHEDULE = {
    # Workers sweep too; this covers the time while no worker runs jobs.
    "sweep-jobs": {"task": "inference.sweep_jobs", "schedule": 10.0, "options": {"expires": 10}},
    "sweep-responses": {"task": "inference.sweep_responses", "schedule": 3600.0, "options": {"expires": 600}},
    "sweep-request-log": {"task": "inference.sweep_request_log", "schedule": 3600.0, "options": {"expires": 3600}},
    "deliver-webhooks": {"task": "inference.deliver_webhooks", "schedule": 5.0, "options": {"expires": 5}},
    "watch-runs": {"task": "models_registry.watch_runs", "schedule": 3.0, "options": {"expires": 3}},
    "sweep-registry": {"task": "models_registry.sweep", "schedule": 60.0, "options": {"expires": 60}},
}
