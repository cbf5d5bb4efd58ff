"""The queue of a run: all its state is in Redis, every change is one atomic move, and one identity covers all states.

There is a client for each role, with one method for each move that the role's Redis user may make (`acl.py`). The moves
themselves are the Redis Functions of `library/`.
"""

from echo_queue.queue.caller import Caller
from echo_queue.queue.evaluation import EvaluationQueue, Evaluations
from echo_queue.queue.fleet import FleetQueue
from echo_queue.queue.learner import LearnerQueue
from echo_queue.queue.monitor import Monitor
from echo_queue.queue.operator import Admin, Operator
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.peers import PeerDirectory
from echo_queue.queue.published_weights import PublishedWeights, TrustedWeights
from echo_queue.queue.run_rules import RunRules
from echo_queue.queue.submitter import SubmitterQueue
from echo_queue.queue.types import (
    Announced,
    Audit,
    Chunk,
    ComponentStatus,
    DeadTask,
    Drained,
    EvaluationRound,
    FailedChunk,
    FailedSet,
    FleetStatus,
    Heartbeat,
    Joined,
    LatestWeights,
    Lease,
    Order,
    Outcome,
    Peer,
    PromptSet,
    Reclaimed,
    Resumed,
    RunKeys,
    ScoredTask,
    Status,
    SubmissionCounts,
    SubmissionStatus,
    Term,
    UpdateRecord,
    Upstream,
    WorkerOrder,
    WorkerStatus,
)
from echo_queue.queue.update_records import UpdateRecords
from echo_queue.queue.worker import WorkerQueue

__all__ = [
    "Admin",
    "Announced",
    "Audit",
    "Caller",
    "Chunk",
    "ComponentStatus",
    "DeadTask",
    "Drained",
    "EvaluationQueue",
    "EvaluationRound",
    "Evaluations",
    "FailedChunk",
    "FailedSet",
    "FleetQueue",
    "FleetStatus",
    "Heartbeat",
    "Joined",
    "LatestWeights",
    "LearnerQueue",
    "Lease",
    "Monitor",
    "Operator",
    "Order",
    "Outcome",
    "Payloads",
    "Peer",
    "PeerDirectory",
    "PromptSet",
    "PublishedWeights",
    "Reclaimed",
    "Resumed",
    "RunKeys",
    "RunRules",
    "ScoredTask",
    "Status",
    "SubmissionCounts",
    "SubmissionStatus",
    "SubmitterQueue",
    "Term",
    "TrustedWeights",
    "UpdateRecord",
    "UpdateRecords",
    "Upstream",
    "WorkerOrder",
    "WorkerQueue",
    "WorkerStatus",
]
