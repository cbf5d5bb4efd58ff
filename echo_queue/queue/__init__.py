"""The queue of a run: every state in Redis, every change one atomic move, one identity over all of them."""

from echo_queue.queue.client import Queue
from echo_queue.queue.types import (
    Audit,
    Beat,
    Chunk,
    DeadTask,
    Drained,
    Lease,
    Ledger,
    Outcome,
    PromptSet,
    QueuePolicy,
    Reclaimed,
    Status,
    WorkerStatus,
)

__all__ = [
    "Audit",
    "Beat",
    "Chunk",
    "DeadTask",
    "Drained",
    "Lease",
    "Ledger",
    "Outcome",
    "PromptSet",
    "Queue",
    "QueuePolicy",
    "Reclaimed",
    "Status",
    "WorkerStatus",
]
