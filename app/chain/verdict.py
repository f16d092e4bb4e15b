"""The verdicts of verification and their exit codes, the same for every command that verifies.

"Broken" outranks everything: one tampered chain among many decides the whole run, and what could not be
looked at is never counted as good.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

EXIT_USAGE = 2
"""The command was not understood: no verdict at all."""


class Verdict(enum.StrEnum):
    """What verification found, from the mildest to the gravest."""

    VERIFIED = "verified"
    """Everything there was is sound and signed by a key that is trusted."""
    RESUMED = "verified from a mark on"
    """The same of what stands behind a mark; what stands before it was not read, and is the mark's word."""
    SELF_DECLARED = "self-declared"
    """Sound, but only the chain itself says whose key signed it."""
    NOTHING = "nothing to verify"
    """No record was looked at."""
    UNCHECKED = "could not check"
    """Something needed was out of reach: a file, the database, an anchor."""
    OTHER_KEY = "another key"
    """Sound, but begun with a key that is not the pinned one: an earlier or later one, or anybody's."""
    INCOMPLETE = "incomplete"
    """What is there is sound, but more was there once: a cut line, or a checkpoint beyond the head."""
    TAMPERED = "tampered"
    """Something was changed."""

    @property
    def exit_code(self) -> int:
        """The process exit code of this verdict; 0 only for fully verified."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Verdict.VERIFIED: 0,
    Verdict.TAMPERED: 1,
    Verdict.INCOMPLETE: 3,
    Verdict.NOTHING: 4,
    Verdict.UNCHECKED: 5,
    Verdict.SELF_DECLARED: 6,
    Verdict.OTHER_KEY: 7,
    Verdict.RESUMED: 8,
}

_SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of several verdicts; ``NOTHING`` when there is none."""
    return max(verdicts, key=_SEVERITY.__getitem__, default=Verdict.NOTHING)
