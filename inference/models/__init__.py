"""Database rows: API keys, usage, energy, jobs, stored responses, files, states, chats, batches and schedules."""

from inference.models.batches import (
    TERMINAL_BATCH_STATES,
    Batch,
    BatchLine,
    BatchResult,
    BatchState,
    LineState,
    WebhookDelivery,
)
from inference.models.chats import SavedChat
from inference.models.energy import EnergyDay, EnergyPrice
from inference.models.files import StoredFile
from inference.models.jobs import TERMINAL_JOB_STATES, GenerationJob, JobChunk, JobState
from inference.models.keys import ApiKey, default_scopes
from inference.models.responses import StoredResponse
from inference.models.schedules import RunOutcome, Schedule, ScheduleAction, ScheduleRun
from inference.models.states import StoredState
from inference.models.usage import UsageDay, UsageRecord, UsageSpan

__all__ = [
    "TERMINAL_BATCH_STATES",
    "TERMINAL_JOB_STATES",
    "ApiKey",
    "Batch",
    "BatchLine",
    "BatchResult",
    "BatchState",
    "EnergyDay",
    "EnergyPrice",
    "GenerationJob",
    "JobChunk",
    "JobState",
    "LineState",
    "RunOutcome",
    "SavedChat",
    "Schedule",
    "ScheduleAction",
    "ScheduleRun",
    "StoredFile",
    "StoredResponse",
    "StoredState",
    "UsageDay",
    "UsageRecord",
    "UsageSpan",
    "WebhookDelivery",
    "default_scopes",
]
