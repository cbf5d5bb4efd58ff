"""Environments: what scores and answers samples. `protocol` says what one promises; `registry` makes one."""

from workers.environments.protocol import (
    EnvironmentSettings,
    InteractiveEnvironment,
    Reply,
    ScoringEnvironment,
    ScoringRequest,
    Session,
    Turn,
)
from workers.environments.registry import create

__all__ = [
    "EnvironmentSettings",
    "InteractiveEnvironment",
    "Reply",
    "ScoringEnvironment",
    "ScoringRequest",
    "Session",
    "Turn",
    "create",
]
