"""The guard's vocabulary: severities with their weights, statuses of actions, outcomes."""

from __future__ import annotations

import enum

MAX_SCORE = 2**32 - 1
"""Where the sum of scar weights saturates."""


class Severity(enum.StrEnum):
    """How bad a scar is."""

    MINOR = "minor"
    MODERATE = "moderate"
    SEVERE = "severe"
    FATAL = "fatal"

    @property
    def weight(self) -> int:
        """What a scar of this severity adds to the score."""
        return _WEIGHTS[self]


_WEIGHTS = {
    Severity.MINOR: 1,
    Severity.MODERATE: 3,
    Severity.SEVERE: 10,
    Severity.FATAL: MAX_SCORE,
}


def add_scar(score: int, severity: Severity) -> int:
    """The score after one more scar; saturates at ``MAX_SCORE``."""
    return min(score + severity.weight, MAX_SCORE)


class OutcomeStatus(enum.StrEnum):
    """How an allowed action went; ``unknown`` is that of a caller whose reply was lost."""

    SUCCESS = "success"
    FAILURE = "failure"
    HARMFUL = "harmful"
    UNKNOWN = "unknown"


class ActionStatus(enum.StrEnum):
    """Where an action stands."""

    REQUESTED = "requested"
    PENDING_APPROVAL = "pending_approval"
    ALLOWED = "allowed"
    DENIED = "denied"
    COMPLETED = "completed"
