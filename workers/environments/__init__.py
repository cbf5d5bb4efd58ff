"""Environments: what scores and answers samples. `protocol` says what one promises; `registry` makes one."""

from workers.environments.protocol import (
    InteractiveEnvironment,
    Reply,
    ScoringEnvironment,
    ScoringRequest,
    Session,
    Turn,
)
from workers.environments.registry import create

__all__ = [
    "InteractiveEnvironment",
    "Reply",
    "ScoringEnvironment",
    "ScoringRequest",
    "Session",
    "Turn",
    "create",
]
