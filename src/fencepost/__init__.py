"""Durable background jobs for Python on the database you already have.

import fencepost

app = fencepost.App("sqlite:///jobs.db")

@app.job
async def send_welcome(user_id: int) -> str: ...

handle = send_welcome.enqueue(user_id=7)
app.run_worker()
"""

from fencepost.app import App
from fencepost.context import JobContext
from fencepost.errors import (
    Abandon,
    ArgumentsError,
    Cancel,
    ConfigurationError,
    DecodingError,
    DependencyError,
    EncodingError,
    EnqueueError,
    FencepostError,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobSkipped,
    LeadershipLost,
    LeaseLost,
    QueueFull,
    ResultError,
    ResultTimeout,
    Retry,
    ScheduleNotFound,
    SchemaError,
    Snooze,
    StoreUnavailable,
)
from fencepost.function import JobFunction
from fencepost.handle import JobHandle
from fencepost.job import (
    Attempt,
    Backoff,
    BusyPolicy,
    Claim,
    Concurrency,
    Hold,
    Job,
    Lease,
    NewJob,
    OnConflict,
    OnMiss,
    Priority,
    Rate,
    Reason,
    State,
    Trigger,
    When,
)
from fencepost.queue import Overflow, QueueSettings
from fencepost.retention import Retention
from fencepost.schedule import Misfire, Schedule
from fencepost.store import Limit
from fencepost.worker import Worker
from fencepost.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "Abandon",
    "App",
    "ArgumentsError",
    "Attempt",
    "Backoff",
    "BusyPolicy",
    "Cancel",
    "Claim",
    "Concurrency",
    "ConfigurationError",
    "DecodingError",
    "DependencyError",
    "EncodingError",
    "EnqueueError",
    "FencepostError",
    "Hold",
    "InvalidTransition",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobNotFound",
    "JobSkipped",
    "LeadershipLost",
    "Lease",
    "LeaseLost",
    "Limit",
    "Misfire",
    "NewJob",
    "OnConflict",
    "OnMiss",
    "Overflow",
    "Priority",
    "QueueFull",
    "QueueSettings",
    "Rate",
    "Reason",
    "ResultError",
    "ResultTimeout",
    "Retention",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "SchemaError",
    "Snooze",
    "State",
    "StoreUnavailable",
    "Trigger",
    "When",
    "Worker",
    "Workflow",
    "__version__",
]
