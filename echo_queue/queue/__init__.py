"""The queue of a run: every state in Redis, every change one atomic move, one identity over all of them."""

from echo_queue.queue.client import Queue
from echo_queue.queue.types import (
    Arrival,
    Audit,
    Beat,
    Chunk,
    DeadTask,
    Drained,
    FailedChunk,
    Lease,
    Ledger,
    Order,
    Outcome,
    PromptSet,
    QueuePolicy,
    Reclaimed,
    Resumed,
    Status,
    WorkerStatus,
)

__all__ = [
    "Arrival",
    "Audit",
    "Beat",
    "Chunk",
    "DeadTask",
    "Drained",
    "FailedChunk",
    "Lease",
    "Ledger",
    "Order",
    "Outcome",
    "PromptSet",
    "Queue",
    "QueuePolicy",
    "Reclaimed",
    "Resumed",
    "Status",
    "WorkerStatus",
]
