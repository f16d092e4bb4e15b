"""What a verification came to, for people and for programs.

Text, JSON and exit code are three views of one ``Run``, so they cannot disagree (case C21).
"""

from __future__ import annotations

from typing import Final

import msgspec

from app.chain.canonical import canonical
from app.chain.report import Report
from app.chain.strict import JsonObject
from app.chain.verdict import Verdict, worst
from app.errors import TrailsError
from app.text import printable

ANCHORED: Final = "complete up to seq {seq}, which a head kept elsewhere confirms"
DATABASE_ONLY: Final = (
    "complete up to what this database knows; only a head kept elsewhere (--checkpoint, --heads) "
    "proves that no tail was cut"
)
FILE_ONLY: Final = (
    "complete up to its own last record; only a head kept elsewhere (--checkpoint, --heads) "
    "proves that no tail was cut"
)
_SEALED: Final = "complete as of "
SEALED: Final = _SEALED + "{sealed}; only a head kept elsewhere (--checkpoint, --heads) tells more"

SOUND: Final = frozenset({Verdict.VERIFIED, Verdict.RESUMED, Verdict.SELF_DECLARED})


class MarkWord(msgspec.Struct, frozen=True):
    """What was not read but taken for verified: records up to ``seq``, on the word of a mark.

    ``written`` is when that was, ``since`` when a verification began that read the chain from its beginning.
    """

    seq: int
    written: str
    since: str

    @property
    def told(self) -> str:
        """The same as a sentence."""
        return f"up to seq {self.seq} on the word of the mark of {self.written} (read last on {self.since})"

    def to_json(self) -> JsonObject:
        """The same as JSON."""
        return {"seq": self.seq, "records": self.seq, "written": self.written, "since": self.since}


class Outcome(msgspec.Struct, frozen=True):
    """One chain, or one input that held none.

    ``source`` is the file's name or "database"; ``note`` says why there is no report, or what else matters.
    """

    source: str
    verdict: Verdict
    tenant: str | None = None
    agent_id: str | None = None
    log_uuid: str | None = None
    report: Report | None = None
    note: str = ""
    mark: MarkWord | None = None
    sealed: str | None = None
    """What vouches for the end of the chain beside its records: the signed statement of an export."""

    @property
    def name(self) -> str:
        """How the chain is called in a table."""
        parts = (self.tenant, self.agent_id)
        return "/".join(part for part in parts if part) or self.source

    @property
    def checked(self) -> int:
        """Records that were looked at."""
        return 0 if self.report is None else self.report.checked

    @property
    def completeness(self) -> str | None:
        """How far the chain is known to be complete; None when it is not sound anyway."""
        if self.report is None or self.verdict not in SOUND:
            return None
        if self.report.anchored_to is not None:
            return ANCHORED.format(seq=self.report.anchored_to)
        if self.sealed is not None:
            return SEALED.format(sealed=self.sealed)
        return DATABASE_ONLY if self.source == "database" else FILE_ONLY

    def to_json(self) -> JsonObject:
        """The outcome as JSON."""
        report = {} if self.report is None else self.report.to_json()
        return {
            **report,
            "source": printable(self.source),
            "tenant": self.tenant,
            "agent_id": self.agent_id,
            "log_uuid": self.log_uuid,
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "checked": self.checked,
            "completeness": self.completeness,
            "note": printable(self.note) or None,
            "mark": None if self.mark is None else self.mark.to_json(),
        }


class Finding(msgspec.Struct, frozen=True):
    """Something that concerns no single chain."""

    verdict: Verdict
    what: str
    reason: str


class Run(msgspec.Struct, frozen=True):
    """A whole verification."""

    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The gravest of all: broken outranks what could not be checked (case C22)."""
        if not self.outcomes and not self.findings:
            return Verdict.NOTHING
        return worst(
            [outcome.verdict for outcome in self.outcomes] + [found.verdict for found in self.findings]
        )

    @property
    def checked(self) -> int:
        """Records that were looked at, over all chains."""
        return sum(outcome.checked for outcome in self.outcomes)

    @property
    def on_a_marks_word(self) -> tuple[int, str] | None:
        """How many records were taken for verified unread, and when the mark that says so was written."""
        words = [outcome.mark for outcome in self.outcomes if outcome.mark is not None]
        return (sum(word.seq for word in words), words[0].written) if words else None

    @property
    def completeness(self) -> str | None:
        """The weakest statement on completeness that holds for all chains; None when not all are sound."""
        statements = [outcome.completeness for outcome in self.outcomes]
        if self.verdict not in SOUND or None in statements:
            return None
        weak = [text for text in statements if text in {DATABASE_ONLY, FILE_ONLY}]
        weak += [text for text in statements if text is not None and text.startswith(_SEALED)]
        return (
            weak[0] if weak else statements[0] if len(statements) == 1 else "complete up to the heads given"
        )

    def to_json(self) -> str:
        """The run as one line of JSON."""
        marked = self.on_a_marks_word
        return canonical(
            {
                "verdict": self.verdict.value,
                "exit_code": self.verdict.exit_code,
                "checked": self.checked,
                "completeness": self.completeness,
                "mark": None if marked is None else {"records": marked[0], "written": marked[1]},
                "chains": [outcome.to_json() for outcome in self.outcomes],
                "findings": [
                    {
                        "verdict": finding.verdict.value,
                        "what": finding.what,
                        "reason": printable(finding.reason),
                    }
                    for finding in self.findings
                ],
                "notes": list(self.notes),
            }
        )

    @property
    def conclusion(self) -> str:
        """What was checked and what is to be known of it, as one sentence."""
        records = f"{self.checked} record{'' if self.checked == 1 else 's'} checked"
        chains = len([outcome for outcome in self.outcomes if outcome.report is not None])
        where = f" in {chains} chains" if chains > 1 else ""
        marked = self.on_a_marks_word
        if marked is not None:
            return f"{records}{where}{_ON_A_MARKS_WORD.format(records=marked[0], written=marked[1])}"
        return f"{records}{where}" + (f"; {self.advice}" if self.advice else "")

    @property
    def advice(self) -> str:
        """What whoever reads the verdict should know besides."""
        return _ADVICE.get(self.verdict) or self.completeness or ""


_ON_A_MARKS_WORD: Final = (
    " now; {records} before them were not read: that they were sound is the word of the mark of {written}"
)
_ADVICE: Final = {
    Verdict.SELF_DECLARED: (
        "self-consistent, but the signer is not trusted: only the chain itself says whose key it is; "
        "pin the key with --public-key"
    ),
    Verdict.NOTHING: "nothing was verified",
    Verdict.UNCHECKED: "not everything could be looked at",
    Verdict.OTHER_KEY: (
        "self-consistent, but not begun with the pinned key: pin the one it began with only if whoever "
        "gave you the key vouches for it"
    ),
    Verdict.INCOMPLETE: "what is there is sound, but records are missing",
    Verdict.TAMPERED: "do not rely on these records",
}


def reason_of(error: Exception) -> str:
    """Why something could not be checked, as a sentence."""
    if isinstance(error, TrailsError):
        return error.message
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"an unexpected error, which is a defect of this program: {type(error).__name__}: {error}"
