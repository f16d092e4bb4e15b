"""Verifying one chain of a file that holds several, and that says of each how many records it has.

Each snapshot of a whole chain is compared with the records before it. A chain that was exported in part
(since, until) is proven from its first record on: hashes, signatures, links. What its snapshots should say
nobody can tell without what is left out, nor which key was in force there: so it is the one that signed the
first record, of those that are pinned, or else of those that the file names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from app.chain.audit import ChainAudit
from app.chain.export import ExportReader
from app.chain.keys import PublicKey
from app.chain.reading import readable
from app.chain.record import Head, SignedRecord, split_line
from app.chain.report import Report
from app.chain.trust import trusted_key
from app.chain.verdict import Verdict, worst
from app.chain.verify import verify_detached
from app.errors import ChainError, FormatError
from app.fold.compare import SnapshotCheck
from app.verification.anchors import checkpoints, contradiction
from app.verification.end import ChainKeys, keys_of
from app.verification.exported import FileOptions, record_text, said_in
from app.verification.outcome import Outcome

PARTIAL: Final = "a filtered export: no complete chain"
"""What is said of a chain of which records were left out."""

_LONG_AGO: Final = -(2**62)


class SaidChain(msgspec.Struct, frozen=True):
    """What the file says of a chain."""

    agent_id: str
    log_uuid: str
    records: int
    first_seq: int | None = None
    last_seq: int | None = None
    head_hash: str | None = None


class ChainOfFile:
    """One chain of a file.

    Args:
        source: the file's name.
        options: what the command line says.
        named: keys that the file itself names, for a chain of which only a part is there.
        partial: whether only a part of it was exported.
    """

    def __init__(
        self, source: str, options: FileOptions, named: Sequence[PublicKey], *, partial: bool
    ) -> None:
        self._source = source
        self._options = options
        self._named = named
        self._partial = partial
        self._reader: ExportReader | None = None
        self._first_text = ""
        self._supposes_a_pin = False
        """Whether it is a part of a chain that is held against a pinned key."""

    def take(self, line: bytes) -> None:
        """The next record's line."""
        if self._reader is None:
            self._first_text = record_text(line) or ""
            self._reader = self._begun(line)
        self._reader.take(line)

    @property
    def has_lines(self) -> bool:
        """Whether there was any."""
        return self._reader is not None

    @property
    def keys(self) -> ChainKeys:
        """The keys that it begins and ends with, and whether a pinned one vouches for them."""
        report = None if self._reader is None else self._reader.report()
        if report is None:
            return ChainKeys()
        known = keys_of(report)
        is_sound = not report.fault_count and (report.signer_trusted or self._supposes_a_pin)
        return ChainKeys(known, known if is_sound else frozenset())

    def end(self, said: SaidChain | None) -> Outcome | None:
        """What it came to, held against what the file says of it; None: it is of another agent.

        Without ``said`` the file breaks off before it could say anything.
        """
        reader = self._reader or ExportReader()
        genesis = said_in(self._first_text)
        agent_id = genesis.log_id or (said.agent_id if said else None)
        log_uuid = genesis.log_uuid or (said.log_uuid if said else None)
        if self._options.agent_id not in {None, agent_id}:
            return None
        reader = self._with_anchors(reader, agent_id, log_uuid)
        report = reader.report()
        verdict, note = _held(report, said, genesis_uuid=genesis.log_uuid)
        verdicts = [verdict, self._verdict_of(report)]
        if contradicting := contradiction(self._anchors(agent_id, log_uuid)):
            verdicts.append(Verdict.TAMPERED)
            note = note or contradicting
        if self._partial and not note:
            note = PARTIAL
        return Outcome(self._source, worst(verdicts), None, agent_id, log_uuid, report, note)

    def _verdict_of(self, report: Report) -> Verdict:
        if not self._partial:
            return report.verdict
        return Verdict.TAMPERED if report.fault_count else Verdict.INCOMPLETE

    def _begun(self, line: bytes) -> ExportReader:
        said = said_in(self._first_text)
        pins = self._options.pinned
        heads = checkpoints(self._anchors(said.log_id, said.log_uuid))
        fields = readable(self._first_text)
        if not self._partial or fields is None or fields.seq == 0:
            reader = ExportReader(trusted_key(self._first_text, pins), heads, pins=pins.values())
            reader.judge = SnapshotCheck(said.chain_id).push
            return reader
        reader = ExportReader()
        key = self._signer(_signed(line))
        if key is not None:
            before = Head(fields.seq - 1, fields.prev_hash, _LONG_AGO)
            reader.audit = ChainAudit.suppose(before, key)
            self._supposes_a_pin = key.hex in pins
        return reader

    def _with_anchors(self, reader: ExportReader, agent_id: str | None, log_uuid: str | None) -> ExportReader:
        """A chain without a line still lacks what heads kept elsewhere say."""
        if self._reader is not None:
            return reader
        return ExportReader(None, checkpoints(self._anchors(agent_id, log_uuid)))

    def _anchors(self, agent_id: str | None, log_uuid: str | None) -> list[Any]:
        return [
            anchor
            for anchor in self._options.anchors
            if anchor.belongs_to(tenant=None, agent_id=agent_id, log_uuid=log_uuid)
        ]

    def _signer(self, signed: SignedRecord) -> PublicKey | None:
        """The key that signed a record, of those that may have; the first of them if none has."""
        candidates = list(self._options.pinned.values()) or list(self._named)
        for key in candidates:
            try:
                verify_detached(signed, key)
            except ChainError:
                continue
            return key
        return candidates[0] if candidates else None


def _held(report: Report, said: SaidChain | None, *, genesis_uuid: str | None) -> tuple[Verdict, str]:
    """What there is to say of a chain beside what its records say; ``VERIFIED`` adds nothing."""
    if said is None:
        return Verdict.INCOMPLETE, "the file breaks off in this chain"
    if genesis_uuid is not None and genesis_uuid != said.log_uuid:
        return Verdict.TAMPERED, f"the file calls this chain {said.log_uuid}"
    if report.checked < said.records:
        return Verdict.INCOMPLETE, f"{report.checked} of the {said.records} records are there"
    head = report.head
    ends = (None, None) if head is None else (head.seq, head.hash)
    if report.checked > said.records or (not report.fault_count and ends != (said.last_seq, said.head_hash)):
        return Verdict.TAMPERED, "count or head are not those that the file says"
    return Verdict.VERIFIED, ""


def _signed(line: bytes) -> SignedRecord:
    try:
        return split_line(line.rstrip(b"\r\n").decode("utf-8"))
    except (FormatError, UnicodeDecodeError):
        return SignedRecord("", "", "")


def said_chain(members: Mapping[str, Any]) -> SaidChain:
    """Reads what a file says of a chain.

    Raises:
        FormatError: it is not of this form.
    """
    try:
        return msgspec.convert(members, SaidChain)
    except msgspec.ValidationError as error:
        raise FormatError(f"what the file says of a chain: {error}") from None
